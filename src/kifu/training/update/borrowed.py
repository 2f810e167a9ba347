"""What stands in an update besides the rollouts of its own step, and logprobs that were computed for it.

Axes: ``N`` trained tokens of one trajectory, tape after tape; ``K`` turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kifu.credit.arrays import Doubles
from kifu.records import Floats, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Borrowed:
    """Records of earlier steps or of other runs that an update trains on."""

    records: Mapping[str, Trajectory] = field(default_factory=dict)
    """By id. They were sampled, and closed, elsewhere: the step's ledger only counts their use. No age is too old."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Id of a rollout of this step to the id of the record that stands in its place."""
    set_aside: tuple[Trajectory, ...] = ()
    """The rollouts whose places were taken."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """What was computed for an update: logprobs of trained tokens under other weights (nats), scores of attempts."""

    reference: Mapping[str, Floats] = field(default_factory=dict)
    """``[N]`` by trajectory, under the frozen reference."""
    model: Mapping[str, float] = field(default_factory=dict)
    """Score of a learned reward model, by trajectory."""
    paid: Mapping[str, Doubles] = field(default_factory=dict)
    """``[K]`` what learned signals pay every turn, by trajectory."""
    present: Mapping[str, Floats] = field(default_factory=dict)
    """``[N]`` by trajectory, under the weights that begin the step; the ratio is taken over these."""
