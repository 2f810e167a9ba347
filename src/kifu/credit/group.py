"""Advantages of attempts at one task, relative to each other.

A member without a reward (None) takes no part: it neither shifts the mean nor widens the spread, and its advantage is
None. Sums are correctly rounded (`math.fsum`), so the order of members changes nothing.

Axes: ``G`` members of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt, ulp
from typing import TypeAlias, assert_never

from kifu.credit.arrays import as_doubles
from kifu.errors import ArgumentError

Rewards: TypeAlias = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscaled:
    """The centred reward itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStd:
    """Divided by the sample standard deviation (n - 1) plus ``eps``."""

    eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationStd:
    """Divided by the population standard deviation (n) plus ``eps``."""

    eps: float = 1e-6


Scale: TypeAlias = Unscaled | SampleStd | PopulationStd


def present(rewards_G: Rewards) -> list[float]:
    """The rewards that exist, in member order; one that is not finite is an error."""
    found = [reward for reward in rewards_G if reward is not None]
    return [float(reward) for reward in as_doubles(found, name="rewards of a group")]


_ROUNDING_ULPS = 16
_SMALLEST = 1e-150
"""The square of less than this is no normal number, so there is no deviation to divide by."""


def are_equal(numbers: Sequence[float]) -> bool:
    """Whether numbers are the same but for rounding.

    They are when the largest and the smallest differ by no more than 16 units in the last place of the largest by
    size, or by no more than 1e-150: 0.1 + 0.2 is paid like 0.3.
    """
    if not numbers:
        return True
    low, high = min(numbers), max(numbers)
    return high - low <= max(_ROUNDING_ULPS * ulp(max(abs(low), abs(high))), _SMALLEST)


def is_degenerate(rewards_G: Rewards) -> bool:
    """Whether the group compares nothing: fewer than two rewards, or all of them equal but for rounding."""
    found = present(rewards_G)
    return len(found) < 2 or are_equal(found)


def mean_reward(rewards_G: Rewards) -> float | None:
    """Mean of the rewards that exist; None without any. The mean of equal numbers is exactly that number."""
    found = present(rewards_G)
    return _mean(found) if found else None


def centred(rewards_G: Rewards, *, baseline: float) -> tuple[float | None, ...]:
    """``[G]`` reward minus a baseline that does not depend on the member's own action, as in REINFORCE."""
    present(rewards_G)
    return tuple(None if reward is None else float(reward) - baseline for reward in rewards_G)


def group_relative(rewards_G: Rewards, *, scale: Scale) -> tuple[float | None, ...]:
    """``[G]`` reward relative to the group (Shao et al., 2024, GRPO).

        A_i = (R_i - mean R) / (std R + eps)        A_i = R_i - mean R   when unscaled

    Exactly 0 for every member of a degenerate group. The mean contains the member's own reward, which scales the
    expected gradient by (n-1)/n; dividing by the group's spread adds a bias that depends on the task.
    """
    if is_degenerate(rewards_G):
        return tuple(None if reward is None else 0.0 for reward in rewards_G)
    found = present(rewards_G)
    mean, divisor = _mean(found), _divisor(found, scale)
    return tuple(None if reward is None else (float(reward) - mean) / divisor for reward in rewards_G)


def leave_one_out(rewards_G: Rewards) -> tuple[float | None, ...]:
    """``[G]`` reward minus the mean of the other members (Ahmadian et al., 2024, RLOO).

        A_i = R_i - mean_{j != i} R_j = n / (n-1) (R_i - mean R)

    Exactly 0 for every member of a degenerate group.

    Raises:
        ArgumentError: fewer than two rewards; ask `is_degenerate` first.
    """
    found = present(rewards_G)
    count = len(found)
    if count < 2:
        raise ArgumentError(f"leave_one_out needs a group of at least 2 attempts, got {count}. Raise `group_size`.")
    if are_equal(found):
        return tuple(None if reward is None else 0.0 for reward in rewards_G)
    mean = _mean(found)
    return tuple(None if reward is None else (float(reward) - mean) * (count / (count - 1)) for reward in rewards_G)


def _mean(found: list[float]) -> float:
    first = fsum(found) / len(found)
    return first + fsum(reward - first for reward in found) / len(found)


def _divisor(found: list[float], scale: Scale) -> float:
    mean = _mean(found)
    squares = fsum((reward - mean) ** 2 for reward in found)
    match scale:
        case Unscaled():
            return 1.0
        case SampleStd(eps=eps):
            return sqrt(squares / (len(found) - 1)) + eps
        case PopulationStd(eps=eps):
            return sqrt(squares / len(found)) + eps
        case _ as unreachable:
            assert_never(unreachable)
