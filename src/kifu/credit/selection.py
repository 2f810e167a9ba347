"""Which groups of a step are trained, and how often: the axis between credit and the update.

A group without signal never reaches this place: its credit is None. A selection sees the others, in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np

from kifu.credit.group import Rewards, mean_reward, present
from kifu.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepInformative:
    """Every group with a signal, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSpread:
    """The groups whose rewards spread most (StarPO-S, Wang et al., 2025), by sample standard deviation."""

    share: float = 0.25
    """Of all groups of the step, degenerate ones included; at least one is kept."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ArgumentError(f"the share of groups that are kept must lie in (0, 1], found {self.share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateInformative:
    """Slots of groups without signal are filled with copies of others of the step (DUPO, Li et al., 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessBand:
    """Groups whose mean reward lies inside a band (SimpleTIR's accuracy filter)."""

    low: float = 0.1
    high: float = 0.9

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ArgumentError(f"a band of mean rewards needs low <= high, found {self.low} and {self.high}")


Selection: TypeAlias = KeepInformative | TopSpread | DuplicateInformative | SuccessBand


def copies_of_groups(selection: Selection, *, rewards: Sequence[Rewards | None], seed: int) -> tuple[int, ...]:
    """How often each group of a step is trained; 0 leaves it out.

    Args:
        selection: which rule.
        rewards: for every group of the step the outcome rewards of its members; None for a group without signal.
        seed: of the draw, where there is one.
    """
    informative = [at for at, group in enumerate(rewards) if group is not None]
    copies = [0 if group is None else 1 for group in rewards]
    match selection:
        case KeepInformative():
            pass
        case TopSpread(share=share):
            spread = {at: _spread(rewards[at] or ()) for at in informative}
            kept = sorted(informative, key=lambda at: (-spread[at], at))[: max(1, int(share * len(rewards)))]
            copies = [int(at in kept) for at in range(len(rewards))]
        case DuplicateInformative():
            random = np.random.Generator(np.random.PCG64(seed))
            free = len(rewards) - len(informative)
            for drawn in random.choice(informative, free) if informative else ():
                copies[int(drawn)] += 1
        case SuccessBand(low=low, high=high):
            means = {at: mean_reward(rewards[at] or ()) for at in informative}
            copies = [int((mean := means.get(at)) is not None and low <= mean <= high) for at in range(len(rewards))]
        case _ as unreachable:
            assert_never(unreachable)
    return tuple(copies)


def _spread(rewards_G: Rewards) -> float:
    """Sample standard deviation; 0 of fewer than two rewards."""
    found = present(rewards_G)
    return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
