"""Potential-based shaping (Ng, Harada, Russell, 1999).

Axes: ``K`` turns.
"""

from math import isfinite

import numpy as np

from kifu.credit.arrays import Doubles, Numbers, as_doubles, discounts
from kifu.errors import ArgumentError


def shaping_rewards(
    potentials_K: Numbers,
    *,
    gamma: float,
    terminated: bool,
    final_potential: float | None = None,
    durations_K: Numbers | None = None,
) -> Doubles:
    """``[K]`` what shaping adds to the reward of every turn.

        F_k = gamma^tau_k Phi(s_{k+1}) - Phi(s_k)

    A true end has potential 0, whatever ``final_potential`` says; a collector's cut keeps its potential, because the
    episode would have gone on. So ``sum_k gamma^(time before k) F_k = -Phi(s_0) + gamma^T Phi(s_T)``, which depends on
    nothing the policy did after the start when the episode terminated.

    Args:
        potentials_K: Phi of the state before each turn.
        gamma: the discount of the return and of the estimator; another one breaks the theorem.
        terminated: whether the task or the policy ended the episode.
        final_potential: Phi(s_T), needed after a cut.
        durations_K: task units each turn took; None means 1 each.

    Raises:
        ArgumentError: a cut without a final potential.
    """
    phi_K = as_doubles(potentials_K, name="potentials")
    discount_K = discounts(durations_K, gamma=gamma, count=phi_K.size)
    if not phi_K.size:
        return discount_K
    boundary = 0.0 if terminated else final_potential
    if boundary is None or not isfinite(boundary):
        raise ArgumentError(
            f"the episode was cut and its final potential is {boundary}. Record Phi(s_T): a cut must not zero it."
        )
    shaped_K: Doubles = discount_K * np.append(phi_K[1:], boundary) - phi_K
    return shaped_K


def check_shaping(
    *, shaping_gamma: float, return_gamma: float, estimator_gamma: float, fully_observed: bool, potential_of: str
) -> tuple[str, ...]:
    """Check the conditions of the invariance theorem that can be checked and return those the user must know.

    Args:
        shaping_gamma: the discount inside F.
        return_gamma: the discount of the objective.
        estimator_gamma: the discount the advantage estimator uses.
        fully_observed: whether the policy sees the Markov state.
        potential_of: ``state`` when Phi is computed from the environment's state, else what it is computed from.

    Returns:
        Warnings, empty when every condition holds. None of them promises faster learning.

    Raises:
        ArgumentError: the three discounts differ.
    """
    if not shaping_gamma == return_gamma == estimator_gamma:
        raise ArgumentError(
            f"shaping needs one gamma; F has {shaping_gamma}, return {return_gamma}, estimator {estimator_gamma}. "
            "With different ones the sum does not telescope and the optimal policy may change."
        )
    found = []
    if potential_of != "state":
        found.append(f"the potential is computed from `{potential_of}`, not from the Markov state: no theorem applies")
    if not fully_observed:
        found.append("the state is partially observed: the set of optimal policies of the observation is not covered")
    return tuple(found)
