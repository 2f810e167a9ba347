"""Credit of turns from how likely they are once the end is known.

Axes: ``K`` turns.
"""

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles, check_gamma
from kifu.errors import ArgumentError


def hindsight_ratios(logprobs_K: Numbers, *, temperature: float, low: float, high: float) -> Doubles:
    """``[K]`` how much likelier a turn is in hindsight than the trajectory's turns are on average (HCAPO, 2603.08754).

        pi_k = exp(l_k / temperature),   rho_k = clip(pi_k / mean pi, low, high)

    Args:
        logprobs_K: l_k, nats, mean over the turn's tokens given its history and how the episode ended.
        temperature: > 0.
        low: smallest ratio.
        high: largest ratio.
    """
    l_K = as_doubles(logprobs_K, name="hindsight log-probabilities")
    if not temperature > 0:
        raise ArgumentError(f"the temperature must be > 0, found {temperature}")
    if not low <= high:
        raise ArgumentError(f"ratios are clipped to [low, high], found [{low}, {high}]")
    if not l_K.size:
        return l_K
    if float(l_K.max()) > 0:
        raise ArgumentError(f"a mean log-probability is at most 0 nats, found {l_K.max()}")
    pi_K = np.exp((l_K - l_K.max()) / temperature)  # the ratio is the same, and its mean does not underflow
    found_K: Doubles = np.clip(pi_K / pi_K.mean(), low, high)
    return found_K


def hindsight_values(ratios_K: Numbers, *, outcome: float, gamma: float) -> Doubles:
    """``[K]`` ``Q_k = rho_k gamma^(K-1-k) R``."""
    rho_K = as_doubles(ratios_K, name="ratios")
    check_gamma(gamma)
    found_K: Doubles = rho_K * np.power(gamma, np.arange(rho_K.size)[::-1]) * outcome
    return found_K
