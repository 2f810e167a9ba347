"""Returns: what follows an action, discounted.

Axes: ``K`` turns (or single steps), ``J`` ticks inside one macro-action.
"""

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles, check_gamma, discounts


def discounted_returns(
    rewards_K: Numbers, *, gamma: float, final_value: float = 0.0, durations_K: Numbers | None = None
) -> Doubles:
    """``[K]`` return from every turn on.

        G_k = r_k + gamma^tau_k G_{k+1},   G_K = final_value

    With every duration tau equal to 1 this is ``G_t = sum_j gamma^j r_{t+j+1}``. In a semi-MDP ``r_k`` is the reward
    of the whole macro-action (see `macro_reward`) and the continuation is discounted by gamma^tau.

    Args:
        rewards_K: reward of each turn, paid after its action.
        gamma: discount of one unit of duration, in [0, 1].
        final_value: worth of what follows the last turn: 0 after a true end, V(h_T) after a cut.
        durations_K: task units each turn took, > 0; None means 1 each.
    """
    r_K = as_doubles(rewards_K, name="rewards")
    discount_K = discounts(durations_K, gamma=gamma, count=r_K.size)
    returns_K = np.empty_like(r_K)
    following = final_value
    for k in range(r_K.size - 1, -1, -1):
        following = r_K[k] + discount_K[k] * following
        returns_K[k] = following
    return returns_K


def macro_reward(rewards_J: Numbers, *, gamma: float) -> float:
    """Reward of one macro-action: ``R^(tau) = sum_j gamma^(j-1) r_j``, j = 1..tau (Sutton, Precup, Singh, 1999)."""
    check_gamma(gamma)
    r_J = as_doubles(rewards_J, name="rewards")
    return float(np.sum(np.power(gamma, np.arange(r_J.size)) * r_J))


def macro_value(rewards_J: Numbers, *, gamma: float, next_value: float) -> float:
    """Worth of one macro-action: ``Q = R^(tau) + gamma^tau V(s')`` with one reward per unit of duration."""
    return macro_reward(rewards_J, gamma=gamma) + gamma ** len(rewards_J) * next_value


def discounted_sum(values_K: Numbers, *, gamma: float, durations_K: Numbers | None = None) -> float:
    """``sum_k gamma^(tau_0 + ... + tau_{k-1}) x_k``: each turn discounted by the time that passed before it."""
    x_K = as_doubles(values_K, name="values")
    discount_K = discounts(durations_K, gamma=gamma, count=x_K.size)
    before_K = np.concatenate([[1.0], np.cumprod(discount_K)[:-1]]) if x_K.size else discount_K
    return float(np.sum(before_K * x_K))
