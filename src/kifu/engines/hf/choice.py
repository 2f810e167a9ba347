"""Choosing one token from logits, and writing down what could have been chosen. Pure numpy, float64.

Axes: ``S`` candidate ids, ``V`` vocabulary.

Order of the transforms: the grammar first, then temperature, top-k, top-p, min-p. Ties are broken by the lower id.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kifu.policy import inverse_cdf
from kifu.records import Ints, Sampling, Support, SupportKind, as_ints

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A token and the distribution it came from."""

    token_id: int
    logprob: float
    """Nats, under the distribution of the kept ids."""
    entropy: float
    """Nats, of that distribution."""
    kept: Ints | None
    """``[S]`` increasing; None when every id of the vocabulary was kept."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest kept ids with their nats, in falling order."""


def choose(
    logits_S: npt.NDArray[np.float32], ids_S: Ints | None, *, sampling: Sampling, u: float, alternatives: int = 0
) -> Choice:
    """Sample by inverse CDF, or take the argmax when greedy.

    Args:
        logits_S: of the candidates, in the order of ``ids_S``.
        ids_S: increasing candidate ids; None when the candidates are the whole vocabulary.
        sampling: temperature and truncation.
        u: in [0, 1), the only randomness.
        alternatives: how many of the likeliest to tell.
    """
    scaled = logits_S.astype(np.float64) / (1.0 if sampling.temperature is None else sampling.temperature)
    kept = _truncate(scaled, sampling)
    if kept is not None:
        scaled = scaled[kept]
    shifted = scaled - scaled.max()
    weights = np.exp(shifted)
    total = float(weights.sum())
    probabilities = weights / total
    at = int(np.argmax(scaled)) if sampling.temperature is None else inverse_cdf(probabilities, u)
    log_total = float(np.log(total))
    ids = ids_S if kept is None else as_ints(kept if ids_S is None else ids_S[kept])
    likeliest = np.argsort(-scaled, kind="stable")[:alternatives].tolist() if alternatives else []
    return Choice(
        token_id=at if ids is None else int(ids[at]),
        logprob=min(0.0, float(shifted[at]) - log_total),
        entropy=max(0.0, log_total - float((probabilities * shifted).sum())),
        kept=ids,
        alternatives=tuple(
            (item if ids is None else int(ids[item]), min(0.0, float(shifted[item]) - log_total)) for item in likeliest
        ),
    )


def logprob_of(logits_S: npt.NDArray[np.float32], at: int, temperature: float | None) -> tuple[float, float]:
    """Log-probability of candidate ``at`` and entropy of all candidates, nats; None is temperature 1."""
    scaled = logits_S.astype(np.float64) / (1.0 if temperature is None else temperature)
    shifted = scaled - scaled.max()
    weights = np.exp(shifted)
    total = float(weights.sum())
    log_total = float(np.log(total))
    return min(0.0, float(shifted[at]) - log_total), max(0.0, log_total - float((weights * shifted).sum()) / total)


def _truncate(scaled_S: Doubles, sampling: Sampling) -> npt.NDArray[np.int64] | None:
    """Indices of the candidates that stay, increasing; None when all do."""
    size = scaled_S.size
    top_k = size if sampling.top_k is None else min(sampling.top_k, size)
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    min_p = sampling.min_p or 0.0
    if top_k == size and top_p >= 1.0 and min_p <= 0.0:
        return None
    order = np.argsort(-scaled_S, kind="stable")[:top_k]
    weights = np.exp(scaled_S[order] - scaled_S[order[0]])
    if top_p < 1.0:
        before = np.cumsum(weights) - weights
        weights = weights[before < top_p * weights.sum()]
    count = int((weights >= min_p).sum())
    return None if count == size else np.sort(order[:count])


def as_support(kept_S: Ints | None, vocabulary: int) -> tuple[Support | None, bytes | None]:
    """The kept ids in the smallest of three forms; the bitmap comes along when the form is a mask."""
    if kept_S is None or kept_S.size == vocabulary:
        return None, None
    num_bitmap_bytes = -(-vocabulary // 8)
    num_excluded = vocabulary - kept_S.size
    if 4 * min(kept_S.size, num_excluded) <= num_bitmap_bytes:
        if kept_S.size <= num_excluded:
            return Support(kind=SupportKind.IDS, ids=kept_S), None
        excluded = np.setdiff1d(np.arange(vocabulary, dtype=np.int32), kept_S, assume_unique=True)
        return Support(kind=SupportKind.NOT_IDS, ids=as_ints(excluded)), None
    flags = np.zeros(vocabulary, dtype=np.bool_)
    flags[kept_S] = True
    bitmap = np.packbits(flags, bitorder="little").tobytes()
    digest = hashlib.sha256(bitmap).hexdigest()
    return Support(kind=SupportKind.MASK, ids=as_ints([]), mask=digest), bitmap


def kept_ids(support: Support | None, vocabulary: int, bitmaps: dict[str, bytes]) -> Ints | None:
    """The ids a support keeps; None for the whole vocabulary.

    Raises:
        KeyError: the support is a mask that is not in the table of bitmaps.
    """
    if support is None:
        return None
    if support.kind is SupportKind.IDS:
        return support.ids
    if support.kind is SupportKind.NOT_IDS:
        return as_ints(np.setdiff1d(np.arange(vocabulary, dtype=np.int32), support.ids, assume_unique=True))
    bitmap = np.frombuffer(bitmaps[support.mask or ""], dtype=np.uint8)
    return as_ints(np.flatnonzero(np.unpackbits(bitmap, bitorder="little")[:vocabulary]))
