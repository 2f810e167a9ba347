"""DAPO: separate bounds, a mean over tokens, groups that differ, and the penalty on length."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest

from kifu.algorithms import build_algorithm, options_of
from kifu.algorithms.dapo import Dapo
from kifu.algorithms.grpo import Grpo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError, ExperimentError

Make = Callable[..., Episode]
Train = Callable[..., Any]


@pytest.mark.parametrize("std", ["none", "sample", "population"])
def test_credit_is_the_return_relative_to_the_group(make_episode: Make, std: str) -> None:
    rewards = [1.0, -0.5, 0.0]
    found = build_algorithm("dapo", {"std": std, "eps": 0.01}).credit(
        [make_episode([0.0] * at + [value]) for at, value in enumerate(rewards)], RewardRules()
    )

    mean = sum(rewards) / 3
    squares = sum((value - mean) ** 2 for value in rewards)
    divisor = {"none": 1.0, "sample": sqrt(squares / 2) + 0.01, "population": sqrt(squares / 3) + 0.01}[std]
    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [
        pytest.approx([(value - mean) / divisor] * (at + 1)) for at, value in enumerate(rewards)
    ]


def test_a_long_attempt_is_penalized_before_the_group_is_normalized(make_attempt: Make) -> None:
    """L_max 10, L_cache 4: 6 tokens cost nothing, 8 cost half, 11 cost 1."""
    group = [make_attempt(1.0, [3, 3]), make_attempt(1.0, [8]), make_attempt(0.0, [5, 6])]

    found = Dapo(overlong=(10, 4), std="none").credit(group, RewardRules())

    rewards = [1.0, 0.5, -1.0]
    assert found is not None
    assert [credit.advantages_K[0] for credit in found] == pytest.approx([value - 0.5 / 3 for value in rewards])


def test_the_filter_looks_at_rewards_without_the_penalty(make_attempt: Make) -> None:
    """All right, one too long: filtered, though the shaped rewards differ. A levelled group goes too."""
    all_right = [make_attempt(1.0, [2]), make_attempt(1.0, [20])]
    levelled = [make_attempt(1.0, [20]), make_attempt(0.0, [2])]

    assert Dapo(overlong=(10, 4)).credit(all_right, RewardRules()) is None
    assert Dapo(overlong=(10, 4)).credit(levelled, RewardRules()) is None
    assert Dapo().credit(levelled, RewardRules()) is not None


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0]])
def test_a_group_of_equal_rewards_is_left_out_and_counted(
    make_attempt: Make, train_on: Train, rewards: list[float]
) -> None:
    dull = [make_attempt(value, [1]) for value in rewards]
    mixed = [make_attempt(1.0, [1]), make_attempt(0.0, [2])]

    found = train_on(Dapo(), dull, mixed)

    assert [group.copies for group in found.update.groups] == [0, 1]
    assert found.update.denominators.tokens == 3


def test_the_upper_bound_lets_a_gaining_token_go_further_than_its_neighbour(
    make_attempt: Make, train_on: Train
) -> None:
    """At a ratio of 1.25 DAPO still has a gradient, GRPO has none; and tokens weigh 1/4 instead of by trajectory."""
    group = [make_attempt(1.0, [3]), make_attempt(0.0, [1])]
    ours, other = (train_on(method, group, ratio=lambda token: 1.25) for method in (Dapo(), Grpo()))

    assert ours.weights == [[0.25] * 3, [0.25]]
    assert other.weights == [pytest.approx([1 / 6] * 3), [0.5]]
    assert (ours.stats["clipped_tokens"], other.stats["clipped_tokens"]) == (0, 3)
    further = train_on(Dapo(), group, ratio=lambda token: 1.29)
    assert further.stats["clipped_tokens"] == 3
    assert further.gradient[0] == [0.0] * 3


def test_the_penalty_needs_lengths_and_says_which_are_missing(make_episode: Make) -> None:
    group = [make_episode([1.0]), make_episode([0.0])]
    with pytest.raises(ArgumentError, match="num_tokens"):
        Dapo(overlong=(10, 4)).credit(group, RewardRules())
    assert Dapo().credit(group, RewardRules()) is not None


def test_the_published_setting_of_the_penalty_is_an_option_that_round_trips() -> None:
    algorithm = build_algorithm("dapo", {"overlong": [20480, 4096]})
    assert options_of(algorithm)["overlong"] == (20480, 4096)
    with pytest.raises(ExperimentError, match="cache 5 and limit 4"):
        build_algorithm("dapo", {"overlong": [4, 5]})
