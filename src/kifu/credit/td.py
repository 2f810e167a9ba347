"""Temporal differences and generalized advantage estimation over turns.

A residual is an inconsistency between a reward and two successive values. It is not blame: it can come from the critic,
from a noisy observation, from a tool that failed, or from an act whose use shows later.

Axes: ``K`` turns.
"""

import numpy as np

from kifu.credit.arrays import Doubles, discounts
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError


def td_residuals(episode: Episode, *, gamma: float) -> Doubles:
    """``[K]`` inconsistency of every turn.

        delta_k = r_k + gamma^tau_k V(h_{k+1}) - V(h_k),   V(h_K) = 0 only if terminated

    They telescope: ``sum_k gamma^(time before k) delta_k = G_0 - V(h_0) + gamma^T V(h_T)``; G_0 holds rewards only.

    Raises:
        ArgumentError: the episode has no values, or was cut and has no final value.
    """
    if episode.values_K is None:
        raise ArgumentError(
            f"{episode.place()}: residuals need `value`, V(h) before every turn; some turn has no values "
            "(is there a critic?)"
        )
    discount_K = discounts(episode.durations_K, gamma=gamma, count=episode.rewards_K.size)
    if not episode.rewards_K.size:
        return discount_K
    next_value_K = np.append(episode.values_K[1:], episode.boundary)
    delta_K: Doubles = episode.rewards_K + discount_K * next_value_K - episode.values_K
    return delta_K


def gae(episode: Episode, *, gamma: float, lam: float) -> Doubles:
    """``[K]`` advantage of every turn (Schulman et al., 2016).

        A_k = delta_k + gamma^tau_k lam A_{k+1},   A_K = 0

    lam = 1 gives return minus value, lam = 0 the residual. ``lam`` decays per turn, gamma per unit of duration. The
    target of the critic is ``A_k + V(h_k)``.

    Raises:
        ArgumentError: lam outside [0, 1], or what `td_residuals` raises.
    """
    if not 0.0 <= lam <= 1.0:
        raise ArgumentError(f"lam must lie in [0, 1], found {lam}")
    delta_K = td_residuals(episode, gamma=gamma)
    discount_K = discounts(episode.durations_K, gamma=gamma, count=delta_K.size)
    advantage_K = np.empty_like(delta_K)
    following = 0.0
    for k in range(delta_K.size - 1, -1, -1):
        following = delta_K[k] + discount_K[k] * lam * following
        advantage_K[k] = following
    return advantage_K
