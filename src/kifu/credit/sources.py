"""Where the trajectories of an update come from: the data axis of a method.

Axes: ``G`` members of a group.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from kifu.credit.group import Rewards, present
from kifu.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRollouts:
    """Rollouts of the present policy, or of one at most ``update.max_age`` versions behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessReplay:
    """Fresh rollouts, and where a whole group fails, one success of an earlier step at the same task."""

    capacity: int = 8
    """Successes kept per task; the oldest leaves first."""
    max_std: float = 0.05
    """A group is helped when the sample deviation of its returns is below this …"""
    max_mean: float = 0.2
    """… and their mean is below this."""
    above: float = 0.1
    """The task reward a success exceeds."""
    ratio: Literal["recorded", "one"] = "recorded"
    """``recorded``: taken over the logprobs recorded when the replayed tokens were sampled, however long ago. ``one``:
    over those of the policy that begins the step, so that nothing corrects for their age."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ArgumentError(f"the buffer of successes must hold at least 1 per task, found {self.capacity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectories:
    """Records of finished runs; nothing is sampled, and no ratio is taken over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPairs:
    """Preferences between records of finished runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedPairs:
    """Experts among records of finished runs, and actions of the present policy in the states they were in."""

    min_reward: float = 1.0
    """Task reward that makes an attempt an expert."""
    samples: int = 4
    """Actions sampled in every expert state …"""
    temperature: float = 0.7
    """… at this temperature …"""
    top_p: float = 0.95
    """… from the likeliest tokens that hold this much probability …"""
    max_tokens: int = 256
    """… and this long at most."""
    warm_up: int = 75
    """Steps of a stage before anything is sampled."""
    round_steps: int = 75
    """Steps after which what was sampled in a state is sampled anew."""

    def __post_init__(self) -> None:
        for name in ("samples", "max_tokens", "round_steps"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} of refreshed negatives must be at least 1, found {getattr(self, name)}")
        if self.warm_up < 0:
            raise ArgumentError(f"warm_up of refreshed negatives must be at least 0, found {self.warm_up}")


DataSource: TypeAlias = FreshRollouts | SuccessReplay | StoredTrajectories | StoredPairs | RefreshedPairs


def wants_replay(rewards_G: Rewards, rule: SuccessReplay) -> bool:
    """Whether a group earned so little, and so equally, that a success is put among it.

        std R < max_std  and  mean R < max_mean,    std with n - 1

    Members without a reward take no part; fewer than two rewards give no deviation and are left as they are.
    """
    found = present(rewards_G)
    if len(found) < 2:
        return False
    return float(np.std(found, ddof=1)) < rule.max_std and float(np.mean(found)) < rule.max_mean
