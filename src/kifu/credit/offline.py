"""Advantages from records alone: what followed a turn, against what the data says the state is worth.

Axes: ``K`` turns, ``G`` members of a group.
"""

from collections.abc import Sequence

import numpy as np

from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.returns import discounted_returns
from kifu.errors import ArgumentError


def returns_over_task(group: Sequence[Episode], *, gamma: float) -> list[Doubles]:
    """``[G][K]`` return from every turn on, minus the mean return of all records of the task.

        A_{i,k} = G_{i,k} - mean_j G_{j,0}

    The mean estimates V of the first state under whoever made the records. Later states are compared with it as well:
    it tells good attempts from bad ones, not good turns from bad ones of the same attempt.
    """
    returns = [
        discounted_returns(
            episode.rewards_K, gamma=gamma, final_value=episode.boundary, durations_K=episode.durations_K
        )
        for episode in group
    ]
    firsts = [values_K[0] for values_K in returns if values_K.size]
    worth = float(np.mean(firsts)) if firsts else 0.0
    return [values_K - worth for values_K in returns]


def returns_over_state(group: Sequence[Episode], *, gamma: float) -> list[Doubles]:
    """``[G][K]`` return from every turn on, minus the mean return that followed this state in the records.

        A_{i,k} = G_{i,k} - mean over all (j, l) with s_{j,l} = s_{i,k} of G_{j,l}

    Exactly 0 in a state that was seen once.

    Raises:
        ArgumentError: a turn without a state key.
    """
    returns = [
        discounted_returns(
            episode.rewards_K, gamma=gamma, final_value=episode.boundary, durations_K=episode.durations_K
        )
        for episode in group
    ]
    by_state: dict[str, list[float]] = {}
    keys = [[turn.state for turn in episode.facts("state")] for episode in group]
    for states, values_K in zip(keys, returns, strict=True):
        for state, value in zip(states, values_K.tolist(), strict=True):
            if state is None:
                raise ArgumentError("a state without a key")
            by_state.setdefault(state, []).append(value)
    worth = {state: float(np.mean(values)) for state, values in by_state.items()}
    return [
        values_K - np.array([worth[str(state)] for state in states])
        for states, values_K in zip(keys, returns, strict=True)
    ]
