"""Means of gradient estimators against the exact gradient, on the corridor and on a partially observed world."""

from itertools import product
from math import comb, sqrt
from typing import Literal

import numpy as np
import pytest

from kifu.credit import Doubles, PopulationStd, SampleStd, Scale, Unscaled, group_relative
from kifu.errors import ArgumentError
from kifu.lab import (
    GroupRelative,
    LeaveOneOut,
    MdpWorld,
    PathTable,
    Reinforce,
    TurnGae,
    World,
    bias,
    corridor,
    enumerate_paths,
    estimator_mean,
    exact_gradient,
    exact_values,
    expected_return,
    path_probabilities,
    policy_rows,
    whole_history,
)

UNBIASED = [
    Reinforce(),
    Reinforce(baseline=0.37),
    LeaveOneOut(size=2),
    LeaveOneOut(size=4),
    TurnGae(),
]


def _logits(table: PathTable, seed: int) -> Doubles:
    found: Doubles = np.random.default_rng(seed).normal(size=table.allowed_RA.shape)
    return found


@pytest.fixture(params=["corridor", "doors", "doors with memory"])
def table(request: pytest.FixtureRequest, doors: World[tuple[str, bool, bool]]) -> PathTable:
    """The corridor under its own limit of 20 steps; the doors for three."""
    if request.param == "corridor":
        return enumerate_paths(MdpWorld(mdp=corridor()), max_steps=20)
    if request.param == "doors":
        return enumerate_paths(doors, max_steps=3)
    return enumerate_paths(doors, max_steps=3, information=whole_history)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_exact_gradient_is_the_finite_difference_of_the_objective(table: PathTable, gamma: float) -> None:
    """Central differences, entry by entry; masked actions have none."""
    logits_RA = _logits(table, 0)
    found_RA = exact_gradient(table, logits_RA, gamma=gamma)
    for at in [(0, 0), (0, 1), (table.allowed_RA.shape[0] - 1, 1)]:
        moved_RA = np.zeros_like(logits_RA)
        moved_RA[at] = 1e-5
        rise = expected_return(table, logits_RA + moved_RA, gamma=gamma) - expected_return(
            table, logits_RA - moved_RA, gamma=gamma
        )
        assert found_RA[at] == pytest.approx(rise / 2e-5, abs=1e-8)
    assert not found_RA[~table.allowed_RA].any()


@pytest.mark.parametrize("estimator", UNBIASED, ids=str)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_unbiased_estimators_have_the_exact_gradient_as_mean(
    table: PathTable, estimator: Reinforce | LeaveOneOut | TurnGae, gamma: float
) -> None:
    """Within 1e-10 in every entry."""
    logits_RA = _logits(table, 1)
    exact_RA = exact_gradient(table, logits_RA, gamma=gamma)
    found_RA = estimator_mean(table, logits_RA, estimator, gamma=gamma)
    np.testing.assert_allclose(found_RA, exact_RA, rtol=0, atol=1e-10)
    assert np.abs(exact_RA).max() > 1e-3


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_with_exact_values_of_histories_any_lambda_is_unbiased(table: PathTable, lam: float) -> None:
    """V of the whole history makes every residual's mean an advantage; an approximate critic would not."""
    logits_RA = _logits(table, 2)
    found_RA = estimator_mean(table, logits_RA, TurnGae(lam=lam), gamma=0.9)
    np.testing.assert_allclose(found_RA, exact_gradient(table, logits_RA, gamma=0.9), rtol=0, atol=1e-10)


def test_values_of_the_corridor_s_starts_are_the_objective() -> None:
    """V of the first history is J."""
    walk = enumerate_paths(MdpWorld(mdp=corridor()), max_steps=8)
    logits_RA = _logits(walk, 3)
    first = walk.paths[0].nodes_T[0]
    assert exact_values(walk, logits_RA, gamma=1.0)[first] == pytest.approx(
        expected_return(walk, logits_RA, gamma=1.0), abs=1e-12
    )


def test_centring_on_the_group_shrinks_the_gradient_by_its_own_share(table: PathTable) -> None:
    """The mean contains the member itself: (n - 1) / n of the gradient, in its direction."""
    logits_RA = _logits(table, 4)
    exact_RA = exact_gradient(table, logits_RA, gamma=1.0)
    found = bias(estimator_mean(table, logits_RA, GroupRelative(size=4, scale=Unscaled()), gamma=1.0), exact_RA)
    assert found.cosine == pytest.approx(1.0, abs=1e-12)
    assert found.scale == pytest.approx(0.75, abs=1e-12)
    assert found.relative_error == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("scale", [SampleStd(), PopulationStd()], ids=str)
def test_the_mean_over_groups_is_that_of_all_pairs_of_paths(doors: World[tuple[str, bool, bool]], scale: Scale) -> None:
    """Groups of two and of three, every ordered tuple written out with both members' scores."""
    small = enumerate_paths(doors, max_steps=1)
    logits_RA = _logits(small, 5)
    probability_P, rows_RA = path_probabilities(small, logits_RA), policy_rows(small, logits_RA)
    returns_P = [sum(path.rewards_T) for path in small.paths]
    for size in (2, 3):
        expected_RA = np.zeros_like(logits_RA)
        for chosen in product(range(len(small.paths)), repeat=size):
            likely = np.prod([probability_P[p] for p in chosen])
            for p, advantage in zip(chosen, group_relative([returns_P[p] for p in chosen], scale=scale), strict=True):
                assert advantage is not None
                score_RA = np.zeros_like(logits_RA)
                for row, action in zip(small.paths[p].rows_T, small.paths[p].actions_T, strict=True):
                    score_RA[row] -= rows_RA[row]
                    score_RA[row, action] += 1
                expected_RA += likely * advantage * score_RA / size
        found_RA = estimator_mean(small, logits_RA, GroupRelative(size=size, scale=scale), gamma=1.0)
        np.testing.assert_allclose(found_RA, expected_RA, rtol=0, atol=1e-12)


def test_dividing_by_the_spread_stretches_the_gradient_of_a_task_with_two_returns() -> None:
    """For returns 0 and 1 the mean is c times the gradient, c = E[A | R = 1] - E[A | R = 0] over binomial groups."""
    walk = enumerate_paths(MdpWorld(mdp=corridor()), max_steps=20)
    logits_RA, size, p = np.zeros(walk.allowed_RA.shape), 8, 1023 / 2048
    stretch = 0.0
    for k in range(size):
        likely = comb(size - 1, k) * p**k * (1 - p) ** (size - 1 - k)
        for own in (1, 0):
            wins = k + own
            spread = sqrt(wins * (size - wins) / size / (size - 1))
            advantage = (own - wins / size) / (spread + 1e-6) if spread else 0.0
            stretch += likely * advantage * (1 if own else -1)
    found = bias(
        estimator_mean(walk, logits_RA, GroupRelative(size=size, scale=SampleStd()), gamma=1.0),
        exact_gradient(walk, logits_RA, gamma=1.0),
    )
    assert found.cosine == pytest.approx(1.0, abs=1e-12)
    assert found.scale == pytest.approx(stretch, abs=1e-9)
    assert stretch == pytest.approx(1.7358, abs=5e-5)


def test_the_bias_of_grpo_s_parts_is_measured_where_returns_and_lengths_differ(
    doors: World[tuple[str, bool, bool]],
) -> None:
    """The figures docs/lab.md prints: direction (cosine) and length of the mean, uniform policy, groups of 8."""
    task = enumerate_paths(doors, max_steps=3)
    logits_RA = np.zeros(task.allowed_RA.shape)
    exact_RA = exact_gradient(task, logits_RA, gamma=1.0)
    table: list[tuple[Scale, Literal["sum", "mean"], float, float]] = [
        (Unscaled(), "sum", 1.0, 0.875),
        (SampleStd(), "sum", 0.9999, 1.716),
        (Unscaled(), "mean", 0.9594, 0.536),
        (SampleStd(), "mean", 0.9601, 1.049),
    ]
    for scale, length, cosine, stretch in table:
        estimator = GroupRelative(size=8, scale=scale, length=length)
        found = bias(estimator_mean(task, logits_RA, estimator, gamma=1.0), exact_RA)
        assert found.cosine == pytest.approx(cosine, abs=5e-5)
        assert found.scale == pytest.approx(stretch, abs=5e-4)


def test_comparing_with_a_gradient_of_zero_is_refused() -> None:
    """A relative error would divide by it."""
    with pytest.raises(ArgumentError, match="gradient is 0"):
        bias(np.ones((1, 2)), np.zeros((1, 2)))


def test_logits_of_another_policy_are_refused(table: PathTable) -> None:
    """By shape."""
    with pytest.raises(ArgumentError, match="logits of shape"):
        policy_rows(table, np.zeros((1, 1)))
