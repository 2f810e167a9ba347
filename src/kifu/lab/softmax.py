"""A policy over a handful of actions: softmax with temperature, and its entropy.

Statements about temperature hold for the pure softmax only: with top-k, top-p or penalties none of them is claimed.

Axes: ``A`` actions.
"""

from math import isfinite

import numpy as np

from kifu.credit.arrays import Doubles, Numbers
from kifu.errors import ArgumentError


def softmax_with_temperature(logits: Numbers, temperature: float) -> Doubles:
    """``[A]`` probabilities ``p_i = exp((z_i - max z) / T) / sum_j exp((z_j - max z) / T)``.

    The maximum is subtracted before dividing, so that neither large logits nor a tiny temperature give nan.

    Raises:
        ArgumentError: logits that are empty, not one axis or not finite; a temperature that is not finite or not > 0.
    """
    scaled_A = _scaled(logits, temperature)
    weight_A = np.exp(scaled_A)
    probability_A: Doubles = weight_A / weight_A.sum()
    return probability_A


def policy_entropy(logits: Numbers, temperature: float) -> float:
    """``H(T) = - sum_i p_i ln p_i`` in nats, between 0 and ln A; an action of probability 0 adds nothing.

    It equals ``log Z - E[z] / T`` and does not fall with temperature: ``dH/dT = Var(z) / T^3``.
    """
    p_A = softmax_with_temperature(logits, temperature)
    seen = p_A > 0
    return float(max(0.0, -np.sum(p_A[seen] * np.log(p_A[seen]))))


def entropy_slope(logits: Numbers, temperature: float) -> float:
    """``dH/dT = Var_p(z) / T^3``, never negative."""
    p_A = softmax_with_temperature(logits, temperature)
    z_A = np.asarray(logits, dtype=np.float64)
    centred_A = (z_A - float(np.sum(p_A * z_A))) / temperature
    return float(np.sum(p_A * centred_A**2) / temperature)


def _scaled(logits: Numbers, temperature: float) -> Doubles:
    z_A = np.asarray(logits, dtype=np.float64)
    if z_A.ndim != 1 or z_A.size == 0:
        raise ArgumentError(f"logits must be a non-empty list of numbers along one axis, found shape {z_A.shape}")
    if not bool(np.isfinite(z_A).all()):
        raise ArgumentError(f"logits must be finite, found {z_A.tolist()}")
    if not isfinite(temperature) or temperature <= 0:
        raise ArgumentError(f"temperature must be finite and > 0, found {temperature}")
    with np.errstate(over="ignore"):
        scaled_A: Doubles = (z_A - z_A.max()) / temperature
    return scaled_A
