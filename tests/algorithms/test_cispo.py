"""CISPO: the weight is capped, the gradient stays."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.cispo import Cispo
from kifu.algorithms.dapo import Dapo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]


def test_the_gradient_is_the_capped_weight_times_the_advantage(make_attempt: Make, train_on: Train) -> None:
    """Ratios 8, 2, .01 | 6, .5 under a largest weight of 5; unscaled advantages .5 and -.5; every token weighs 1/5."""
    group = [make_attempt(1.0, [2, 0, 1]), make_attempt(0.0, [2])]
    ratios = [8.0, 2.0, 0.01, 6.0, 0.5]

    found = train_on(Cispo(std="none"), group, ratio=lambda token: ratios[token])

    weights = [min(ratio, 5.0) for ratio in ratios]
    expected = [-weight * advantage / 5 for weight, advantage in zip(weights, [0.5] * 3 + [-0.5] * 2, strict=True)]
    assert [value for row in found.gradient for value in row] == pytest.approx(expected)
    assert found.stats["clipped_tokens"] == 2


def test_a_lower_cap_raises_small_weights(make_attempt: Make, train_on: Train) -> None:
    group = [make_attempt(1.0, [1]), make_attempt(0.0, [1])]
    found = train_on(Cispo(std="none", clip_low=0.2), group, ratio=lambda token: 0.1)
    assert found.gradient == [pytest.approx([-0.8 * 0.25]), pytest.approx([0.8 * 0.25])]
    assert found.stats["clipped_tokens"] == 2


def test_a_rare_token_keeps_its_gradient_where_its_neighbour_drops_it(make_attempt: Make, train_on: Train) -> None:
    """A ratio of 10 with a positive advantage: beyond DAPO's 1.28 nothing is left, here the capped weight is."""
    group = [make_attempt(1.0, [1]), make_attempt(0.0, [1])]
    ours, other = (
        train_on(method, group, ratio=lambda token: [10.0, 1.0][token]) for method in (Cispo(std="none"), Dapo())
    )
    assert ours.gradient[0] == pytest.approx([-5.0 * 0.25])
    assert other.gradient[0] == [0.0]


def test_credit_is_relative_to_the_group_and_none_without_a_comparison(make_episode: Make) -> None:
    found = Cispo(eps=0.0).credit([make_episode([value]) for value in (-1.0, 0.0, 1.0)], RewardRules())
    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [[-1.0], [0.0], [1.0]]
    assert Cispo().credit([make_episode([1.0]), make_episode([1.0])], RewardRules()) is None
    assert Cispo().credit([make_episode([1.0])], RewardRules()) is None
