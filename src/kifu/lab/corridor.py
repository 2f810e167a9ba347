"""The corridor: a symmetric walk over a row of cells, its exact value and its Monte-Carlo estimate.

Axes: ``S`` cells, ``N`` episodes.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

import numpy as np

from kifu.credit import Doubles
from kifu.errors import ArgumentError
from kifu.lab.language import StochasticPolicy
from kifu.lab.mdp import FiniteMdp

CELLS, START, MAX_STEPS = 5, 2, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """Where the walk ends, as exact fractions that sum to 1."""

    right: Fraction
    """The right exit pays 1, so this is also the value of the protocol."""
    left: Fraction
    cut: Fraction
    """Still walking when the steps are used up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """What a number of episodes says about the value."""

    mean: float
    standard_error: float
    """``sqrt(p (1 - p) / N)`` with the estimated p."""
    draws: int
    """Random numbers used: one per step taken."""
    outcomes_N: Doubles
    """Return of each episode."""

    def running(self) -> Doubles:
        """``[N]`` the estimate after each episode."""
        counts_N = np.arange(1, self.outcomes_N.size + 1)
        means_N: Doubles = np.cumsum(self.outcomes_N) / counts_N
        return means_N


def corridor(*, cells: int = CELLS, start: int = START, gamma: float = 1.0) -> FiniteMdp:
    """The corridor as tables: action 0 goes left, 1 right; both ends are terminal and entering the right one pays 1."""
    _check(cells, start)
    transition_SAS, reward_SAS = np.zeros((cells, 2, cells)), np.zeros((cells, 2, cells))
    for cell in range(cells):
        ends = cell in (0, cells - 1)
        for action, step in enumerate((-1, 1)):
            transition_SAS[cell, action, cell if ends else cell + step] = 1.0
    reward_SAS[cells - 2, 1, cells - 1] = 1.0
    terminal_S = np.zeros(cells, dtype=np.bool_)
    terminal_S[[0, -1]] = True
    start_S = np.zeros(cells)
    start_S[start] = 1.0
    return FiniteMdp(
        transition_SAS=transition_SAS, reward_SAS=reward_SAS, start_S=start_S, terminal_S=terminal_S, gamma=gamma
    )


def uniform_policy(mdp: FiniteMdp) -> StochasticPolicy:
    """Every action is equally likely everywhere."""
    return StochasticPolicy(table_SA=np.full((mdp.num_states, mdp.num_actions), 1.0 / mdp.num_actions))


def exact_exits(*, cells: int = CELLS, start: int = START, max_steps: int = MAX_STEPS) -> Exits:
    """Dynamic programming over the distribution of the symmetric walk, in exact fractions."""
    _check(cells, start)
    here = {start: Fraction(1)}
    left = right = Fraction(0)
    for _ in range(max_steps):
        after: dict[int, Fraction] = {}
        for cell, mass in here.items():
            for neighbour in (cell - 1, cell + 1):
                after[neighbour] = after.get(neighbour, Fraction(0)) + mass / 2
        left += after.pop(0, Fraction(0))
        right += after.pop(cells - 1, Fraction(0))
        here = after
    return Exits(right=right, left=left, cut=sum(here.values(), Fraction(0)))


def unlimited_value(*, cells: int = CELLS, start: int = START) -> Fraction:
    """Value without a step limit: the chance of the right exit is linear in the cell (a fair game ends where it began).

    V(s) = (V(s - 1) + V(s + 1)) / 2,   V(0) = 0,   V(cells - 1) = 1
    """
    _check(cells, start)
    return Fraction(start, cells - 1)


def monte_carlo(
    *, episodes: int, seed: int, max_steps: int = MAX_STEPS, cells: int = CELLS, start: int = START
) -> Estimate:
    """Estimate the value of the symmetric walk by its mean return.

    One ``numpy.random.default_rng(seed)`` serves all episodes; every step taken draws one ``integers(2)`` (0 left, 1
    right), nothing is drawn after an end. Compare the estimate with the value of the same protocol: `exact_exits` with
    the same ``max_steps``, not the value without a limit.
    """
    _check(cells, start)
    if episodes < 1 or max_steps < 1:
        raise ArgumentError(f"needs at least 1 episode and 1 step, found {episodes} episodes of {max_steps} steps")
    generator = np.random.default_rng(seed)
    outcomes_N, draws = np.zeros(episodes), 0
    for episode in range(episodes):
        cell = start
        for _ in range(max_steps):
            cell += 1 if int(generator.integers(2)) else -1
            draws += 1
            if cell in (0, cells - 1):
                outcomes_N[episode] = float(cell == cells - 1)
                break
    mean = float(outcomes_N.mean())
    return Estimate(mean=mean, standard_error=sqrt(mean * (1 - mean) / episodes), draws=draws, outcomes_N=outcomes_N)


def error_band(*, value: float, episodes: int) -> Doubles:
    """``[N]`` standard error ``sqrt(p (1 - p) / n)`` of the mean of n = 1..N episodes when the true value is p."""
    n_N = np.arange(1, episodes + 1)
    band_N: Doubles = np.sqrt(value * (1 - value) / n_N)
    return band_N


def _check(cells: int, start: int) -> None:
    if cells < 3 or not 0 < start < cells - 1:
        raise ArgumentError(f"a corridor has at least 3 cells and starts between its ends, found {start} of {cells}")
