"""Small worlds that several tests walk through."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kifu.lab import Outcome


@dataclass(frozen=True)
class Doors:
    """A hidden colour; action 0 looks (once), 1 opens red, 2 opens blue. The right door pays 1 and ends the episode.

    A state is (colour, looked, just looked): only the observation right after looking names the colour.
    """

    num_actions: int = 3

    def starts(self) -> Sequence[tuple[float, tuple[str, bool, bool]]]:
        """Red is a little more likely."""
        return [(0.6, ("red", False, False)), (0.4, ("blue", False, False))]

    def observe(self, state: tuple[str, bool, bool]) -> str:
        """The colour just after looking, otherwise whether looking is possible."""
        colour, looked, just = state
        return colour if just else ("looked" if looked else "start")

    def allowed(self, state: tuple[str, bool, bool]) -> Sequence[int]:
        """Looking works once."""
        return (1, 2) if state[1] else (0, 1, 2)

    def outcomes(self, state: tuple[str, bool, bool], action: int) -> Sequence[Outcome[tuple[str, bool, bool]]]:
        """Looking costs .1; a door sticks with probability .25 and then nothing happens."""
        colour, looked, _ = state
        if action == 0:
            return [Outcome(probability=1.0, state=(colour, True, True), reward=-0.1, terminated=False)]
        paid = 1.0 if (action == 1) == (colour == "red") else 0.0
        return [
            Outcome(probability=0.75, state=(colour, looked, False), reward=paid, terminated=True),
            Outcome(probability=0.25, state=(colour, looked, False), reward=0.0, terminated=False),
        ]


@pytest.fixture
def doors() -> Doors:
    """A partially observed world with a mask and a random tool failure."""
    return Doors()
