"""What an attempt cost, turn by turn, and what the experiment charges for it.

Axes: ``K`` turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum, isfinite
from typing import Any

from kifu.errors import RecordError
from kifu.records.tokens import Origin
from kifu.records.trajectory import Trajectory

_WRITTEN = (Origin.POLICY, Origin.DEMONSTRATION, Origin.EXTERNAL)


class Cost(StrEnum):
    """What is counted."""

    TOKENS = "tokens"
    """Tokens that a model or a demonstrator wrote; prompts, results, templates and forced tokens are none."""
    TURNS = "turns"
    CALLS = "calls"
    """Executed calls."""
    SECONDS = "seconds"
    """Wall time of the turns as recorded. Doing the same again takes another time: only the record tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Where a cost enters what is trained on: with a weight it is paid as a reward, with a limit it is a constraint."""

    cost: Cost
    weight: float | None = None
    """Taken from the reward of a turn for every unit the turn cost."""
    limit: float | None = None
    """An episode that cost more counts as failed: its task reward is at most 0."""

    def __post_init__(self) -> None:
        for name, value in (("weight", self.weight), ("limit", self.limit)):
            if value is not None and not (isfinite(value) and value >= 0):
                raise RecordError(f"cost `{self.cost}`: {name} must be a finite number from 0 on, found {value}")
        if (self.weight is None) is (self.limit is None):
            raise RecordError(f"cost `{self.cost}`: expected a weight (a reward) or a limit (a constraint), not both")

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        return {"cost": self.cost.value, "weight": self.weight, "limit": self.limit}


def cost_by_turn(trajectory: Trajectory, cost: Cost) -> tuple[float, ...]:
    """``[K]`` what every turn cost; the turns that a branch shares with its parent cost what they cost the parent."""
    turns = trajectory.turns
    match cost:
        case Cost.TOKENS:
            counts = [0] * len(turns)
            for span in (span for tape in trajectory.tapes for span in tape.spans if span.origin in _WRITTEN):
                counts[span.turn] += len(span)
            return tuple(map(float, counts))
        case Cost.TURNS:
            return (1.0,) * len(turns)
        case Cost.CALLS:
            return tuple(float(len(turn.action.executed)) for turn in turns)
        case Cost.SECONDS:
            return tuple(turn.seconds for turn in turns)


def limits_exceeded(trajectory: Trajectory, charges: Sequence[Charge]) -> tuple[Cost, ...]:
    """The costs whose limits the episode went over, in the order of the charges."""
    return tuple(
        charge.cost
        for charge in charges
        if charge.limit is not None and fsum(cost_by_turn(trajectory, charge.cost)) > charge.limit
    )


def constrained_reward(trajectory: Trajectory, charges: Sequence[Charge]) -> float | None:
    """The task reward credit is computed from: the verdict's, at most 0 where a limit was exceeded; None is absent."""
    reward = trajectory.reward
    return reward if reward is None or not limits_exceeded(trajectory, charges) else min(reward, 0.0)
