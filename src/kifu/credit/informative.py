"""How often a group of attempts with a binary reward can teach anything.

Axes: ``B`` tasks of a mixture.
"""

from math import expm1, log, log1p

import numpy as np

from kifu.credit.arrays import Numbers, as_doubles
from kifu.errors import ArgumentError


def degenerate_probability(p: float, *, size: int) -> float:
    """``P_deg = p^G + (1-p)^G``: every member succeeds or every member fails.

    Args:
        p: probability that one attempt at this task succeeds.
        size: G, members of the group.
    """
    return 1.0 - informative_probability(p, size=size)


def informative_probability(p: float, *, size: int) -> float:
    """``P_info = 1 - p^G - (1-p)^G``, accurate for p near 0 and near 1."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"p must lie in [0, 1], found {p}")
    if size < 1:
        raise ArgumentError(f"a group has at least 1 member, found {size}")
    if size == 1:
        return 0.0
    rare = min(p, 1.0 - p)
    return max(0.0, -expm1(size * log1p(-rare)) - rare**size)


def expected_groups(p: float, *, size: int) -> float | None:
    """``1 / P_info``: groups to collect until one compares; None when no group ever does."""
    informative = informative_probability(p, size=size)
    return None if informative == 0.0 else 1.0 / informative


def group_size_for(p: float, *, informative: float) -> int | None:
    """Smallest group whose P_info reaches ``informative``; None when no size does (p is 0 or 1)."""
    if not 0.0 < informative < 1.0:
        raise ArgumentError(f"the wanted share must lie in (0, 1), found {informative}")
    rare = min(p, 1.0 - p)
    if rare <= 0.0:
        return None
    size = max(2, int(log(1.0 - informative) / log1p(-rare)))
    while size > 2 and informative_probability(p, size=size - 1) >= informative:
        size -= 1
    while informative_probability(p, size=size) < informative:
        size += 1
    return size


def mixture_informative(p_B: Numbers, *, size: int, weights_B: Numbers | None = None) -> float:
    """Share of informative groups when every group is drawn from one task of a mixture.

        P_info = sum_b w_b P_info(p_b)

    It is not P_info of the mean success: tasks at 0.01 and 0.99 average 0.5 and still almost never compare.
    """
    share_B = np.array([informative_probability(float(p), size=size) for p in as_doubles(p_B, name="p")])
    if not share_B.size:
        raise ArgumentError("a mixture needs at least one task")
    weight_B = np.ones(share_B.size) if weights_B is None else as_doubles(weights_B, name="weights")
    if weight_B.size != share_B.size or bool((weight_B < 0).any()) or not weight_B.sum() > 0:
        raise ArgumentError(f"{share_B.size} tasks need as many weights >= 0 with a positive sum, found {weight_B}")
    return float(np.sum(weight_B * share_B) / np.sum(weight_B))
