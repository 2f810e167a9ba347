"""Credit of turns that a rule can check one by one.

Axes: ``K`` turns.
"""

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles, check_gamma
from kifu.credit.episode import TurnFacts


def component_reward(turn: TurnFacts, component: str | None) -> float:
    """What a reward component was paid in a turn, unweighted; None adds all of them. What was not paid is 0."""
    return float(sum(turn.rewards.values())) if component is None else turn.rewards.get(component, 0.0)


def gated_future(rewards_K: Numbers, *, gamma: float, gated: bool = True) -> Doubles:
    """``[K]`` what follows a turn, counted only where the turn itself was right (TARA, arXiv 2607.15660).

    V_k = r_k sum_{j >= 0} gamma^j r_{k+1+j}          without the gate: the sum alone; r is 0 after the end
    """
    r_K = as_doubles(rewards_K, name="rewards")
    check_gamma(gamma)
    future_K = np.zeros(r_K.size)
    for k in range(r_K.size - 2, -1, -1):
        future_K[k] = r_K[k + 1] + gamma * future_K[k + 1]
    found_K: Doubles = r_K * future_K if gated else future_K
    return found_K
