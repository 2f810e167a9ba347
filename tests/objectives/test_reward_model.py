"""The reward model: its losses in closed form, what it learns, and that it disturbs nobody's random numbers."""

from math import exp, log, log1p

import numpy as np
import pytest
import torch

from kifu.errors import ArgumentError
from kifu.objectives import (
    Fitting,
    SequenceScorer,
    bradley_terry_loss,
    fit_labels,
    fit_preferences,
    preference_accuracy,
    soft_label_loss,
)
from kifu.records import Ints, as_ints


def test_the_preference_loss_is_the_mean_of_log_odds() -> None:
    chosen, rejected = torch.tensor([1.0, -0.5], requires_grad=True), torch.tensor([0.0, 0.5])

    loss = bradley_terry_loss(chosen_P=chosen, rejected_P=rejected)
    loss.backward()

    assert loss.item() == pytest.approx((log1p(exp(-1.0)) + log1p(exp(1.0))) / 2)
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-1 / (1 + exp(1.0)) / 2, -1 / (1 + exp(-1.0)) / 2])


def test_the_label_loss_is_a_cross_entropy_with_soft_targets() -> None:
    chance = 1 / (1 + exp(-0.4))
    expected = -(0.3 * log(chance) + 0.7 * log(1 - chance))

    assert soft_label_loss(score_B=torch.tensor([0.4]), label_B=torch.tensor([0.3])).item() == pytest.approx(expected)


def sequences(count: int, *, good: bool, seed: int) -> list[Ints]:
    """Random tokens; a good one has a 7 somewhere and a bad one never."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        ids = random.integers(0, 7, int(random.integers(2, 9)))
        if good:
            ids[int(random.integers(ids.size))] = 7
        found.append(as_ints(ids))
    return found


@pytest.fixture
def pairs() -> list[tuple[Ints, Ints]]:
    good, bad = sequences(120, good=True, seed=1), sequences(120, good=False, seed=2)
    return list(zip(good, bad, strict=True))


def test_fitted_to_preferences_it_orders_pairs_it_never_saw(pairs: list[tuple[Ints, Ints]]) -> None:
    scorer = SequenceScorer(vocabulary=8, hidden=16, seed=0)
    before = preference_accuracy(scorer, pairs[80:])

    losses = fit_preferences(scorer, pairs[:80], fitting=Fitting(steps=120, batch=16))

    after = preference_accuracy(scorer, pairs[80:])
    assert before is not None
    assert after is not None
    assert losses[-20:].mean() < 0.2 * losses[:5].mean()
    assert after > max(0.9, before)


def test_fitted_to_soft_labels_it_gives_them_back() -> None:
    good, bad = sequences(60, good=True, seed=1), sequences(60, good=False, seed=2)
    labels = np.array([0.9] * 60 + [0.2] * 60)
    scorer = SequenceScorer(vocabulary=8, hidden=16, seed=0)

    fit_labels(scorer, good + bad, labels, fitting=Fitting(steps=250, batch=32))

    with torch.no_grad():
        found = torch.sigmoid(scorer(good + bad)).numpy()
    assert found[:60].mean() == pytest.approx(0.9, abs=0.05)
    assert found[60:].mean() == pytest.approx(0.2, abs=0.05)


def test_equal_settings_give_equal_models_and_the_global_generator_stays(pairs: list[tuple[Ints, Ints]]) -> None:
    state = torch.random.get_rng_state()
    scorers = [SequenceScorer(vocabulary=8, hidden=8, seed=3) for _ in range(2)]
    losses = [fit_preferences(scorer, pairs, fitting=Fitting(steps=5)).tolist() for scorer in scorers]

    assert losses[0] == losses[1]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_score_does_not_depend_on_neighbours_and_unseen_ids_are_one() -> None:
    scorer = SequenceScorer(vocabulary=8, hidden=8, seed=0)
    with torch.no_grad():
        alone = [float(scorer([as_ints(ids)])[0]) for ids in ([1, 2], [3], [1, 9, 1])]
        together = scorer([as_ints(ids) for ids in ([1, 2], [3], [1, 9, 1], [1, 70, 1])]).tolist()

    assert together[:3] == pytest.approx(alone, abs=1e-6)
    assert together[2] == together[3]


def test_what_cannot_be_fitted_is_told(pairs: list[tuple[Ints, Ints]]) -> None:
    scorer = SequenceScorer(vocabulary=8, hidden=8, seed=0)
    with pytest.raises(ArgumentError, match="nothing to fit"):
        fit_preferences(scorer, [], fitting=Fitting())
    with pytest.raises(ArgumentError, match="1 sequences with 2 labels"):
        fit_labels(scorer, [as_ints([1])], np.zeros(2), fitting=Fitting())
    with pytest.raises(ArgumentError, match=r"labels must lie in \[0, 1\]"):
        fit_labels(scorer, [as_ints([1])], np.array([1.5]), fitting=Fitting())
    with pytest.raises(ArgumentError, match="steps and batch >= 1"):
        Fitting(steps=0)
    assert preference_accuracy(scorer, []) is None
