"""Whether everything that limited a turn's tokens stands in its recorded support.

Axes: ``S`` ids of a support.
"""

import numpy as np

from kifu.errors import RenderError
from kifu.policy import Constraint, Generation
from kifu.records import Ints, Support, SupportKind


def uncovered(generation: Generation, *, constraint: Constraint | None, vocabulary: int) -> str | None:
    """The transform of logits that the supports do not hold; None when they hold all.

    Args:
        generation: the turn.
        constraint: the grammar it was asked to follow, which is read once more here.
        vocabulary: number of ids.
    """
    sampling = generation.sampling
    truncated = sampling.top_k is not None or (sampling.top_p or 1.0) < 1.0 or (sampling.min_p or 0.0) > 0.0
    if truncated and generation.support is None and bool(generation.sampled.any()):
        return "truncation is not in the support"
    return None if constraint is None else _outside(generation, constraint, vocabulary)


def _outside(generation: Generation, constraint: Constraint, vocabulary: int) -> str | None:
    ids = [int(token) for token in generation.token_ids]
    for at, token in enumerate(ids):
        try:
            allowed = constraint.allowed(tuple(ids[:at]))
        except RenderError:
            return "a token the grammar does not allow"
        if allowed is None:
            continue
        if token not in allowed:
            return "a token the grammar does not allow"
        if not generation.sampled[at]:
            continue
        if allowed.size == 1:
            return "a token the grammar forces counts as sampled"
        support = None if generation.support is None else generation.support[at]
        if allowed.size < vocabulary and not _is_within(support, allowed, vocabulary):
            return "the grammar is not in the support"
    return None


def _is_within(support: Support | None, allowed: Ints, vocabulary: int) -> bool:
    """Whether a support keeps only allowed ids; a bitmap is taken at its word."""
    if support is None:
        return False
    if support.kind is SupportKind.IDS:
        return bool(np.isin(support.ids, allowed).all())
    if support.kind is SupportKind.NOT_IDS:
        kept = np.setdiff1d(np.arange(vocabulary), support.ids, assume_unique=True)
        return bool(np.isin(kept, allowed).all())
    return True
