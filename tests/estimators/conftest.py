"""The environments of the suite as worlds that can be enumerated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from kifu.envs.suites.key_door import COLOURS, TOOLS, KeyDoor, State, transition
from kifu.lab import Outcome, PathTable, enumerate_paths, whole_history

NAMES = tuple(tool.name for tool in TOOLS)
Seen: TypeAlias = tuple[State, str]
"""The hidden state and the text shown on arrival."""


@dataclass(frozen=True)
class KeyDoorWorld:
    """`kifu.lab.World` over the environment's own rule. An observation is the text with the phase mask."""

    doors: tuple[str, ...] = COLOURS
    budget: int = 4
    shaped_by: float | None = None
    """Discount of the shaping that is added to the reward; None leaves the reward sparse."""
    num_actions: int = len(NAMES)

    def starts(self) -> Sequence[tuple[float, Seen]]:
        """Every door, equally likely."""
        return [(1 / len(self.doors), (State(door=door, budget=self.budget), "start")) for door in self.doors]

    def observe(self, state: Seen) -> tuple[str, tuple[int, ...]]:
        """What the policy is shown."""
        return state[1], tuple(self.allowed(state))

    def allowed(self, state: Seen) -> Sequence[int]:
        """The phase mask of the environment in that state."""
        return [NAMES.index(name) for name in _standing_in(state[0]).allowed()]

    def outcomes(self, state: Seen, action: int) -> Sequence[Outcome[Seen]]:
        """The one thing that follows."""
        after, reply = transition(state[0], NAMES[action])
        reward = float(_standing_in(after).verify().success is True)
        if self.shaped_by is not None:
            reward += self.shaped_by * _standing_in(after).potential() - _standing_in(state[0]).potential()
        return [Outcome(probability=1.0, state=(after, reply.text), reward=reward, terminated=reply.stop is not None)]


def _standing_in(state: State) -> KeyDoor:
    world = KeyDoor()
    world.state = replace(state)
    return world


KeyDoorTable: TypeAlias = Callable[..., PathTable]


@pytest.fixture
def key_door_table() -> KeyDoorTable:
    """Every path of a key_door with a short budget, for a policy that remembers unless told otherwise."""

    def make(*, max_steps: int | None = None, information: object = whole_history, **world: object) -> PathTable:
        built = KeyDoorWorld(**world)  # type: ignore[arg-type]
        return enumerate_paths(built, max_steps=max_steps or built.budget, information=information)  # type: ignore[arg-type]

    return make
