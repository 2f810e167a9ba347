"""Advantages and rewards of whole attempts beside the plain group-relative ones: other divisors, other statistics.

As in `kifu.credit.group` a member without a reward (None) takes no part.

Axes: ``G`` members of a group, ``N`` values of one update.
"""

from collections.abc import Sequence
from math import sqrt
from typing import assert_never

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles
from kifu.credit.group import (
    PopulationStd,
    Rewards,
    SampleStd,
    Scale,
    Unscaled,
    are_equal,
    group_relative,
    mean_reward,
    present,
)
from kifu.errors import ArgumentError


def maximum_likelihood(rewards_G: Rewards) -> tuple[float | None, ...] | None:
    """``[G]`` reward relative to the group's mean, in units of that mean (MaxRL, arXiv 2602.02710).

        A_i = (R_i - mean R) / mean R

    With rewards of 0 and 1, as the source has them, and the advantage 0 where nobody succeeds, the expected gradient is
    that of log p truncated after n - 1 terms: ``(1 - (1 - p)^(n-1)) / p`` times that of the success probability p.

    Returns:
        None when the mean is 0: nobody succeeded, and the ratio means nothing.

    Raises:
        ArgumentError: a negative reward, which has no likelihood to be in proportion to.
    """
    for at, reward in enumerate(present(rewards_G)):
        if reward < 0.0:
            raise ArgumentError(
                f"member {at} of the group has the reward {reward}; a maximum-likelihood advantage needs rewards >= 0. "
                "Shift the rewards, or take another method."
            )
    mean = mean_reward(rewards_G)
    if mean is None or mean == 0.0:
        return None
    return tuple(None if reward is None else (float(reward) - mean) / mean for reward in rewards_G)


def relative_by_calls(rewards_G: Rewards, *, calls_G: Sequence[int], scale: Scale) -> tuple[float | None, ...]:
    """``[G]`` reward relative to a group in which every call of a rollout is a row with the rollout's reward.

    A rollout of many calls counts as often in mean and deviation.

    Args:
        rewards_G: of the rollouts.
        calls_G: how many rows each rollout gives; one without any takes no part.
        scale: of all rows.
    """
    rows = [reward if calls else None for reward, calls in zip(rewards_G, calls_G, strict=True) for _ in range(calls)]
    relative, found, at = group_relative(rows, scale=scale), [], 0
    for calls in calls_G:
        found.append(relative[at] if calls else None)
        at += calls
    return tuple(found)


def overlong_penalty(tokens: int, *, limit: int, cache: int) -> float:
    """What is added to the reward of a long attempt: 0, then falling to -1 (Yu et al., 2025, DAPO, eq. 13).

        0                                  up to limit - cache tokens
        ((limit - cache) - tokens) / cache up to the limit
        -1                                 beyond it

    Args:
        tokens: sampled tokens of the attempt.
        limit: L_max.
        cache: L_cache, how far before the limit the penalty begins; 0 < cache <= limit.
    """
    if not 0 < cache <= limit:
        raise ArgumentError(f"the overlong penalty needs 0 < cache <= limit, found cache {cache} and limit {limit}")
    if tokens <= limit - cache:
        return 0.0
    return ((limit - cache) - tokens) / cache if tokens <= limit else -1.0


def format_and_answer(*, format_ok: bool, answer_ok: bool, format_share: float = 0.1) -> float:
    """A verifier's reward in two parts, ``0.1 format + 0.9 answer`` (Li et al., 2025, WebSailor).

    For verifiers of your own environment: an attempt in the wrong format keeps the share of its answer.
    """
    if not 0.0 <= format_share <= 1.0:
        raise ArgumentError(f"the share of the format must lie in [0, 1], found {format_share}")
    return format_share * format_ok + (1.0 - format_share) * answer_ok


def batch_moments(values_N: Numbers, *, counts_N: Numbers, scale: Scale) -> tuple[float, float]:
    """Mean and divisor that normalize the advantages of a whole update, ``(A - mean) / divisor``.

    The mean of equal values is exactly that value, so that they are normalized to exactly 0; values that are equal but
    for rounding have the deviation 0. A divisor of 0, where nothing is added to the deviation, is 1 instead.

    Args:
        values_N: advantages of all trained tokens.
        counts_N: how often each stands in the update; a value of count 0 is in no statistic.
        scale: which deviation, and what is added to it.
    """
    values, counts = as_doubles(values_N, name="advantages"), as_doubles(counts_N, name="counts")
    values, counts = values[counts > 0], counts[counts > 0]
    total = float(counts.sum())
    if not values.size:
        return 0.0, 1.0
    mean = float(values[0]) if _is_constant(values) else float((counts * values).sum()) / total
    is_equal = are_equal([float(values.min()), float(values.max())])
    squares = 0.0 if is_equal else float((counts * np.square(values - mean)).sum())
    match scale:
        case SampleStd(eps=eps):
            return mean, ((sqrt(squares / (total - 1.0)) if total > 1.0 else 0.0) + eps) or 1.0
        case PopulationStd(eps=eps):
            return mean, (sqrt(squares / total) + eps) or 1.0
        case Unscaled():
            return mean, 1.0
        case _ as unreachable:
            assert_never(unreachable)


def _is_constant(values: Doubles) -> bool:
    return bool((values == values[0]).all())
