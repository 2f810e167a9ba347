"""Values relative to others that share a key: a state, a turn's index, or nothing but the group.

Axes: ``G`` members of a group, ``K`` turns of one member.
"""

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles
from kifu.credit.group import Scale, Unscaled, group_relative
from kifu.errors import ArgumentError


def relative_by_key(
    values_GK: Sequence[Numbers], keys_GK: Sequence[Sequence[Hashable]], *, scale: Scale
) -> tuple[Doubles, ...]:
    """``[G][K]`` every value relative to all values of the group that have its key.

        A_{i,k} = (x_{i,k} - mean of x over the key) / (std over the key + eps)

    Exactly 0 where a key has one value, or equal ones.
    """
    found_GK = tuple(np.zeros(len(values_K)) for values_K in values_GK)
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for i, (values_K, keys_K) in enumerate(zip(values_GK, keys_GK, strict=True)):
        if len(values_K) != len(keys_K):
            raise ArgumentError(f"member {i}: {len(keys_K)} keys for {len(values_K)} values")
        for k, key in enumerate(keys_K):
            places.setdefault(key, []).append((i, k))
    for at in places.values():
        relative = group_relative([float(values_GK[i][k]) for i, k in at], scale=scale)
        for (i, k), advantage in zip(at, relative, strict=True):
            found_GK[i][k] = advantage
    return found_GK


def relative_by_position(values_GN: Sequence[Doubles]) -> tuple[Doubles, ...]:
    """``[G][N]`` every value minus the mean at its position over all members; one that is over counts as 0."""
    total = np.zeros(max((values_N.size for values_N in values_GN), default=0))
    for values_N in values_GN:
        total[: values_N.size] += values_N
    return tuple(values_N - total[: values_N.size] / len(values_GN) for values_N in values_GN)


def episode_relative(
    scores_G: Numbers, lengths_G: Sequence[int], *, scale: Scale, cross_steps: bool = True
) -> tuple[float, ...]:
    """``[G]`` score of every member relative to the group, as GiGPO's code does it (arXiv 2505.10978).

    Args:
        scores_G: reward of each member.
        lengths_G: turns of each member.
        scale: what the centred score is divided by.
        cross_steps: whether a member stands in mean and spread once a turn, so that long ones weigh more, or once.

    Returns:
        Where the statistics hold a single score, mean 0 and deviation 1 are taken: the score itself, over 1 + eps.
    """
    score_G = as_doubles(scores_G, name="scores")
    counts_G = [length if cross_steps else int(length > 0) for length in lengths_G]
    rows = [float(score) for score, count in zip(score_G, counts_G, strict=True) for _ in range(count)]
    if len(rows) == 1:
        divisor = 1.0 if isinstance(scale, Unscaled) else 1.0 + scale.eps
        return tuple(float(score) / divisor if count else 0.0 for score, count in zip(score_G, counts_G, strict=True))
    relative = iter(group_relative(rows, scale=scale))
    found: list[float] = []
    for count in counts_G:
        own = [next(relative) for _ in range(count)]
        found.append(float(own[0] or 0.0) if own else 0.0)
    return tuple(found)


def merge_similar(keys: Sequence[str], *, threshold: float) -> tuple[str, ...]:
    """Each key replaced by the first earlier one that is at least ``threshold`` similar, itself when there is none.

    Similarity is that of `difflib.SequenceMatcher`; the comparison is with the first key of each cluster, in order.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ArgumentError(f"a similarity lies in [0, 1], found {threshold}")
    firsts: dict[str, str] = {}
    clusters: list[str] = []
    for key in keys:
        if key in firsts:
            continue
        firsts[key] = next((first for first in clusters if _are_similar(key, first, threshold)), key)
        if firsts[key] == key:
            clusters.append(key)
    return tuple(firsts[key] for key in keys)


def _are_similar(key: str, first: str, threshold: float) -> bool:
    found = SequenceMatcher(None, key, first)
    # Two upper bounds of the ratio first: they cost a fraction of it, and most pairs of states are strangers.
    return all(bound() >= threshold for bound in (found.real_quick_ratio, found.quick_ratio, found.ratio))
