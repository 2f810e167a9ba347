"""Random numbers as a function of where they are used, so that a rollout does not depend on its neighbours."""

import hashlib

import numpy as np


def uniform(stream: str, *, turn: int, position: int) -> float:
    """One float64 in [0, 1) for one sampled token.

    Counter-based (Philox 4x64, Salmon et al., 2011): the key is the first 128 bits of SHA-256 of the stream's name,
    the counter is (position in the turn, turn). Anyone can recompute it from the record.
    """
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key, counter=np.array([position, turn, 0, 0], dtype=np.uint64))
    return float(np.random.Generator(bits).random())


def inverse_cdf(probabilities: np.ndarray, u: float) -> int:
    """Index of the first entry whose cumulative probability exceeds ``u``; float64, robust to rounding at the end.

    Args:
        probabilities: ``[S]`` non-negative, not necessarily summing to exactly 1.
        u: in [0, 1).
    """
    cumulative = np.cumsum(np.asarray(probabilities, dtype=np.float64))
    at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if at < cumulative.size and probabilities[at] > 0.0:
        return at
    return min(at, int(np.flatnonzero(probabilities)[-1]))
