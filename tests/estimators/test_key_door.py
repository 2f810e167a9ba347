"""Means of gradient estimators against the exact gradient on key_door with a short budget, in float64."""

from collections.abc import Callable

import numpy as np
import pytest

from kifu.credit import Doubles, PopulationStd, SampleStd, Scale, Unscaled
from kifu.envs.suites.key_door import memoryless_optimum, optimum
from kifu.lab import (
    Bias,
    GroupRelative,
    LeaveOneOut,
    PathTable,
    Reinforce,
    TurnGae,
    bias,
    estimator_mean,
    exact_gradient,
    expected_return,
    last_observation,
    path_probabilities,
)

KeyDoorTable = Callable[..., PathTable]
UNBIASED = [Reinforce(), Reinforce(baseline=0.37), LeaveOneOut(size=2), LeaveOneOut(size=4), TurnGae(lam=1.0)]


def _logits(table: PathTable, seed: int) -> Doubles:
    """A policy that is neither uniform nor bad: noise, and a push towards actions that lead on."""
    noise_RA = np.random.default_rng(seed).normal(size=table.allowed_RA.shape)
    found: Doubles = noise_RA - np.array([0, 0, 0, 0, 0, 2.0])
    return found


@pytest.fixture(params=["memoryless", "with memory", "budget 5", "cut by the collector", "shaped"])
def table(request: pytest.FixtureRequest, key_door_table: KeyDoorTable) -> PathTable:
    """Budgets of four and five steps; a collector's cut after four of five; shaping with the same discount."""
    match request.param:
        case "memoryless":
            return key_door_table(information=last_observation)
        case "with memory":
            return key_door_table()
        case "budget 5":
            return key_door_table(budget=5)
        case "cut by the collector":
            return key_door_table(budget=5, max_steps=4)
        case _:
            return key_door_table(shaped_by=0.9)


def test_the_enumerated_world_is_the_one_the_environment_searches(key_door_table: KeyDoorTable) -> None:
    """Path probabilities sum to 1, and the best tables reach the optima the environment finds by its own search."""
    table = key_door_table()
    assert path_probabilities(table, _logits(table, 0)).sum() == pytest.approx(1.0, abs=1e-12)
    assert expected_return(table, _expert(table), gamma=1.0) == pytest.approx(optimum(4), abs=1e-12)
    blind = key_door_table(information=last_observation)
    always_red = np.zeros(blind.allowed_RA.shape)
    for row, seen in enumerate(blind.information):
        assert isinstance(seen, tuple)
        always_red[row, {"start": 0, "clue_red": 1, "clue_blue": 1, "holding": 3, "opened": 5}.get(seen[0], 0)] = 200.0
    assert expected_return(blind, always_red, gamma=1.0) == pytest.approx(memoryless_optimum(4).value, abs=1e-12)


def _expert(table: PathTable) -> Doubles:
    """Inspect, take the key of the clue, open that door, finish."""
    logits_RA = np.zeros(table.allowed_RA.shape)
    for row, history in enumerate(table.information):
        assert isinstance(history, tuple)
        texts = [seen[0] for seen in history[::2]]
        other = "clue_blue" in texts
        logits_RA[row, {"start": 0, "holding": 3 + other, "opened": 5}.get(texts[-1], 1 + other)] = 200.0
    return logits_RA


@pytest.mark.parametrize("estimator", UNBIASED, ids=str)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_unbiased_estimators_have_the_exact_gradient_as_mean(
    table: PathTable, estimator: Reinforce | LeaveOneOut | TurnGae, gamma: float
) -> None:
    """Within 1e-10 in every entry of the table."""
    logits_RA = _logits(table, 1)
    exact_RA = exact_gradient(table, logits_RA, gamma=gamma)
    found_RA = estimator_mean(table, logits_RA, estimator, gamma=gamma)
    np.testing.assert_allclose(found_RA, exact_RA, rtol=0, atol=1e-10)
    assert np.abs(exact_RA).max() > 1e-3


def test_shaping_leaves_the_gradient_where_it_was(key_door_table: KeyDoorTable) -> None:
    """Every episode ends by the task and starts at potential 0, so shaped and sparse returns are equal in sum."""
    sparse, shaped = key_door_table(), key_door_table(shaped_by=0.9)
    logits_RA = _logits(sparse, 2)
    assert sparse.information == shaped.information
    np.testing.assert_allclose(
        exact_gradient(shaped, logits_RA, gamma=0.9), exact_gradient(sparse, logits_RA, gamma=0.9), rtol=0, atol=1e-10
    )


def test_shaping_with_another_discount_moves_the_gradient(key_door_table: KeyDoorTable) -> None:
    """The condition of the theorem is needed: F with gamma 0.5 under returns with gamma 0.9 does not telescope."""
    sparse, shaped = key_door_table(), key_door_table(shaped_by=0.5)
    logits_RA = _logits(sparse, 2)
    moved = exact_gradient(shaped, logits_RA, gamma=0.9) - exact_gradient(sparse, logits_RA, gamma=0.9)
    assert np.abs(moved).max() > 1e-2


def _grpo_bias(key_door_table: KeyDoorTable, scale: Scale, *, by_length: bool) -> Bias:
    """Groups of 8 attempts at one task; the mean over the red and the blue task, uniform policy with memory."""
    found: dict[object, Doubles] = {}
    exact: dict[object, Doubles] = {}
    for door in ("red", "blue"):
        table = key_door_table(doors=(door,))
        logits_RA = np.zeros(table.allowed_RA.shape)
        estimator = GroupRelative(size=8, scale=scale, length="mean" if by_length else "sum")
        for rows, into in (
            (estimator_mean(table, logits_RA, estimator, gamma=1.0), found),
            (exact_gradient(table, logits_RA, gamma=1.0), exact),
        ):
            for key, row_A in zip(table.information, rows, strict=True):
                into[key] = into.get(key, np.zeros(6)) + row_A / 2
    return bias(np.array([found[key] for key in exact]), np.array(list(exact.values())))


GRPO_BIAS: list[tuple[Scale, bool, float, float]] = [
    (Unscaled(), False, 1.0, 0.875),
    (SampleStd(), False, 1.0, 2.3585),
    (PopulationStd(), False, 1.0, 2.5213),
    (Unscaled(), True, 0.9073, 0.3670),
    (SampleStd(), True, 0.9073, 0.9892),
    (PopulationStd(), True, 0.9073, 1.0575),
]
"""(scale, divided by length, cosine, length of the mean / length of the gradient)."""


@pytest.mark.parametrize(("scale", "by_length", "cosine", "stretch"), GRPO_BIAS)
def test_the_bias_of_grpo_is_the_one_docs_results_estimators_prints(
    key_door_table: KeyDoorTable, scale: Scale, by_length: bool, cosine: float, stretch: float
) -> None:
    """A measured value, not a claim that it vanishes."""
    found = _grpo_bias(key_door_table, scale, by_length=by_length)
    assert found.cosine == pytest.approx(cosine, abs=5e-5)
    assert found.scale == pytest.approx(stretch, abs=5e-4)
