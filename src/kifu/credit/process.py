"""What learned feedback on turns pays on the way.

Axes: ``K`` turns.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles
from kifu.credit.labels import Label
from kifu.errors import ArgumentError

Pays: TypeAlias = Literal["difference", "score"]


def process_rewards(scores_K: Numbers, *, weight: float, baseline: float, pays: Pays) -> Doubles:
    """``[K]`` what a process reward model adds to the reward of every turn.

        score         w s_k
        difference    w (s_k - s_{k-1}),    s_{-1} = baseline

    The differences of an attempt add up to ``w (s_{K-1} - baseline)``: going in circles is paid nothing. It is no
    potential-based shaping, because s_k reads the action: the best policy may change.

    Args:
        scores_K: s_k in [0, 1], of everything up to the end of each turn.
        weight: w.
        baseline: what an attempt is worth before its first turn.
        pays: which of the two.

    Raises:
        ArgumentError: a score outside [0, 1].
    """
    s_K = as_doubles(scores_K, name="scores of turns")
    if s_K.size and not bool(((s_K >= 0.0) & (s_K <= 1.0)).all()):
        raise ArgumentError(f"scores of turns must lie in [0, 1], found {s_K.min()} to {s_K.max()}")
    match pays:
        case "score":
            paid_K: Doubles = weight * s_K
        case "difference":
            paid_K = weight * np.diff(s_K, prepend=baseline)
        case _ as unreachable:
            assert_never(unreachable)
    return paid_K


def hindsight_rewards(labels_K: Sequence[Label], *, weight: float) -> Doubles:
    """``[K]`` + w for a turn that is labelled good, - w for a bad one, 0 for a neutral one."""
    signs = {Label.GOOD: 1.0, Label.BAD: -1.0, Label.NEUTRAL: 0.0}
    return weight * np.array([signs[label] for label in labels_K], dtype=np.float64)
