"""The numbers of one trajectory at its turn boundaries, and how its end is treated.

Axes: ``K`` turns.
"""

from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias, assert_never

from kifu.credit.arrays import Doubles, as_doubles, discounts
from kifu.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """Rewards and, where there is a critic, values of one trajectory."""

    rewards_K: Doubles
    """Reward of each turn, paid after its action."""
    terminated: bool
    """True when the future is worth 0; False when it was cut off and is worth ``final_value``."""
    values_K: Doubles | None = None
    """V(h_k) before each turn, under the weights that sampled it."""
    final_value: float | None = None
    """V(h_T) after the last turn. Ignored when the episode terminated."""
    durations_K: Doubles | None = None
    """Task units each turn took, > 0; None means 1 each."""

    def __post_init__(self) -> None:
        rewards_K = as_doubles(self.rewards_K, name="rewards")
        object.__setattr__(self, "rewards_K", rewards_K)
        if self.values_K is not None:
            object.__setattr__(self, "values_K", as_doubles(self.values_K, name="values"))
            if len(self.values_K) != rewards_K.size:
                raise ArgumentError(
                    f"{len(self.values_K)} values for {rewards_K.size} turns; V(h_T) goes into `final_value`"
                )
        if self.durations_K is not None:
            discounts(self.durations_K, gamma=1.0, count=rewards_K.size)
            object.__setattr__(self, "durations_K", as_doubles(self.durations_K, name="durations"))
        if self.final_value is not None and not isfinite(self.final_value):
            raise ArgumentError(f"final_value must be finite, found {self.final_value}; None means nobody computed it")

    @property
    def boundary(self) -> float:
        """Worth of what follows the last turn: 0 only when the episode terminated.

        Raises:
            ArgumentError: the episode was cut and nobody computed V(h_T).
        """
        if self.terminated:
            return 0.0
        if self.final_value is None:
            raise ArgumentError(
                "the episode was cut and has no final value. Record V(h_T), or treat cuts as `exclude` or `terminal`."
            )
        return self.final_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """A cut episode goes on being worth V(h_T)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude:
    """A cut episode is not trained on and enters no statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A cut counts as the end: the limit belongs to the task, or the bias is accepted."""


CutTreatment: TypeAlias = Bootstrap | Exclude | Terminal


def treat_cut(episode: Episode, treatment: CutTreatment) -> Episode | None:
    """Apply the experiment's treatment of a collector's cut; an episode that terminated is returned as it is.

    Returns:
        The episode to train on, or None when it is excluded.

    Raises:
        ArgumentError: `Bootstrap` without a final value.
    """
    if episode.terminated:
        return episode
    match treatment:
        case Exclude():
            return None
        case Terminal():
            return Episode(
                rewards_K=episode.rewards_K,
                terminated=True,
                values_K=episode.values_K,
                durations_K=episode.durations_K,
            )
        case Bootstrap():
            _ = episode.boundary
            return episode
        case _ as unreachable:
            assert_never(unreachable)
