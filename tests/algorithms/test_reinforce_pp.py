"""REINFORCE++ against plain loops: one mean and one deviation for the whole update."""

from collections.abc import Callable
from math import sqrt
from typing import Any, Literal

import pytest

from kifu.algorithms.grpo import Grpo
from kifu.algorithms.reinforce_pp import ReinforcePlusPlus
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]


@pytest.mark.parametrize("std", ["population", "sample"])
def test_advantages_are_normalized_over_all_trained_tokens_of_the_update(
    make_attempt: Make, train_on: Train, std: Literal["population", "sample"]
) -> None:
    groups = [[make_attempt(1.0, [2, 0, 3])], [make_attempt(-1.0, [1]), make_attempt(0.25, [2, 2])]]

    found = train_on(ReinforcePlusPlus(std=std, eps=0.125), *groups)

    tokens = [1.0] * 5 + [-1.0] + [0.25] * 4
    mean = sum(tokens) / 10
    squares = sum((value - mean) ** 2 for value in tokens)
    divisor = sqrt(squares / (9 if std == "sample" else 10)) + 0.125
    assert [value for row in found.advantages for value in row] == pytest.approx(
        [(value - mean) / divisor for value in tokens]
    )
    assert found.weights == [pytest.approx([0.1] * 5), pytest.approx([0.1]), pytest.approx([0.1] * 4)]


def test_a_baseline_takes_the_groups_mean_off_first(make_attempt: Make, train_on: Train) -> None:
    """Groups (1, 0) and (5, 4) are the same after centring; without a baseline the second is above the mean."""
    groups = [[make_attempt(a, [1]), make_attempt(b, [1])] for a, b in ((1.0, 0.0), (5.0, 4.0))]

    centred = train_on(ReinforcePlusPlus(baseline="group"), *groups)
    plain = train_on(ReinforcePlusPlus(), *groups)

    assert centred.advantages == [pytest.approx([value], abs=1e-6) for value in (1.0, -1.0, 1.0, -1.0)]
    deviation = sqrt((1.5**2 + 2.5**2) / 2)
    assert plain.advantages == [pytest.approx([v / deviation], abs=1e-6) for v in (-1.5, -2.5, 2.5, 1.5)]


def test_a_baseline_leaves_a_group_of_equal_returns_out(make_episode: Make) -> None:
    group = [make_episode([0.5]), make_episode([0.0, 0.5])]
    assert ReinforcePlusPlus(baseline="group").credit(group, RewardRules()) is None
    assert ReinforcePlusPlus().credit(group, RewardRules()) is not None
    assert ReinforcePlusPlus().credit(group[:1], RewardRules()) is not None


def test_a_turn_has_the_return_that_followed_it(make_episode: Make) -> None:
    found = ReinforcePlusPlus().credit([make_episode([1.0, 0.0, 2.0])], RewardRules(gamma=0.5))
    assert found is not None
    assert found[0].advantages_K.tolist() == [1.5, 1.0, 2.0]


@pytest.mark.parametrize("reward", [0.1, 1.0, -1.0])
def test_an_update_of_equal_returns_carries_no_signal(make_attempt: Make, train_on: Train, reward: float) -> None:
    """Not even rounding is left of it: the trajectories are not trained."""
    found = train_on(ReinforcePlusPlus(), *([make_attempt(reward, [1 + at])] for at in range(3)))

    assert [group.is_informative for group in found.update.groups] == [False] * 3
    assert (found.weights, found.loss, found.update.denominators.tokens) == ([], 0.0, 0)


def test_single_attempts_compare_where_a_group_of_one_does_not(make_attempt: Make, train_on: Train) -> None:
    """Against grpo: two tasks with one attempt each."""
    groups = [[make_attempt(1.0, [1])], [make_attempt(0.0, [1])]]

    assert train_on(ReinforcePlusPlus(), *groups).advantages == [pytest.approx([1.0]), pytest.approx([-1.0])]
    assert train_on(Grpo(), *groups).advantages == []


def test_a_ratio_above_the_bound_has_no_gradient_where_the_advantage_gains(make_attempt: Make, train_on: Train) -> None:
    found = train_on(
        ReinforcePlusPlus(),
        [make_attempt(1.0, [2])],
        [make_attempt(0.0, [2])],
        ratio=lambda token: [1.5, 1.1][token % 2],
    )
    assert found.gradient == [pytest.approx([0.0, -1.1 / 4]), pytest.approx([1.5 / 4, 1.1 / 4])]
    assert found.stats["clipped_tokens"] == 1
