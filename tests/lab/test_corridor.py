"""The corridor: exact fractions three ways, and the estimate of the source."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from kifu.lab import (
    corridor,
    enumerate_trajectories,
    error_band,
    evaluate,
    exact_exits,
    monte_carlo,
    objective,
    uniform_policy,
    unlimited_value,
)


def test_exact_exits_are_the_fractions_of_the_source() -> None:
    """Right and left 1023/2048, cut 1/1024."""
    found = exact_exits()
    assert (found.right, found.left, found.cut) == (Fraction(1023, 2048), Fraction(1023, 2048), Fraction(1, 1024))


def test_tables_and_enumeration_agree_with_the_fractions() -> None:
    """Backward induction on the matrices; the sum over all paths."""
    mdp = corridor()
    policy = uniform_policy(mdp)
    assert objective(mdp, policy, max_steps=20) == pytest.approx(1023 / 2048, abs=1e-12)
    walks = list(enumerate_trajectories(mdp, policy, max_steps=20))
    assert sum(walk.probability for walk in walks) == pytest.approx(1.0, abs=1e-12)
    won = [walk for walk in walks if any(step.reward for step in walk.trajectory.transitions)]
    cut = [walk for walk in walks if not walk.trajectory.is_episode]
    assert sum(walk.probability for walk in won) == pytest.approx(1023 / 2048, abs=1e-12)
    assert sum(walk.probability for walk in cut) == pytest.approx(1 / 1024, abs=1e-12)


def test_without_a_limit_the_value_is_one_half() -> None:
    """The linear system against the fair-game argument, in every cell and another corridor."""
    mdp = corridor()
    np.testing.assert_allclose(evaluate(mdp, uniform_policy(mdp))[1:4], [0.25, 0.5, 0.75], rtol=0, atol=1e-12)
    assert unlimited_value() == Fraction(1, 2)
    longer = corridor(cells=8, start=3)
    assert evaluate(longer, uniform_policy(longer))[3] == pytest.approx(float(unlimited_value(cells=8, start=3)))


def test_the_estimate_of_the_source_is_exactly_0_494() -> None:
    """1000 episodes, seed 7, 20 steps: 4194 draws."""
    found = monte_carlo(episodes=1000, seed=7)
    assert (found.mean, found.draws) == (0.494, 4194)
    assert found.standard_error == pytest.approx(0.0158, abs=5e-5)


def test_estimates_stay_within_four_standard_errors_of_their_own_protocol() -> None:
    """A limit of 4 steps: right exit 3/8, far from the value without a limit."""
    exact = exact_exits(max_steps=4)
    assert exact.right == Fraction(3, 8)
    for seed in range(5):
        found = monte_carlo(episodes=2000, seed=seed, max_steps=4)
        assert abs(found.mean - 0.375) < 4 * sqrt(0.375 * 0.625 / 2000)


def test_the_running_estimate_ends_at_the_estimate() -> None:
    """Data of the plot of estimate against number of episodes, with its band."""
    found = monte_carlo(episodes=50, seed=1)
    running, band = found.running(), error_band(value=0.5, episodes=50)
    assert running[-1] == pytest.approx(found.mean)
    assert running[9] == pytest.approx(np.mean(found.outcomes_N[:10]))
    assert band[[0, 24]].tolist() == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize(("cells", "start"), [(2, 1), (5, 0), (5, 4), (5, 7)])
def test_a_corridor_one_cannot_walk_in_is_refused(cells: int, start: int) -> None:
    """Too short, or started on an end."""
    with pytest.raises(ValueError, match="a corridor has at least 3 cells"):
        exact_exits(cells=cells, start=start)


def test_no_episodes_estimate_nothing() -> None:
    """Refused instead of 0 / 0."""
    with pytest.raises(ValueError, match="at least 1 episode"):
        monte_carlo(episodes=0, seed=0)
