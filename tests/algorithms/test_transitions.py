"""Transitions: rows of calls, weighed by rollout."""

from collections.abc import Callable
from math import sqrt
from typing import Any, Literal

import pytest

from kifu.algorithms.grpo import Grpo
from kifu.algorithms.transitions import Transitions
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]


def test_tokens_of_a_rollout_cut_into_rows_have_the_printed_weights(make_attempt: Make, train_on: Train) -> None:
    """Rows of 10 and 30 tokens of one rollout, 20 of another: .0125, .0125 and .025, in all 1."""
    found = train_on(Transitions(), [make_attempt(1.0, [10, 30]), make_attempt(0.0, [20])])

    assert found.weights[0] == pytest.approx([0.0125] * 40)
    assert found.weights[1] == pytest.approx([0.025] * 20)
    assert sum(map(sum, found.weights)) == pytest.approx(1.0)


def test_a_mean_over_calls_gives_a_rollout_of_many_calls_more(make_attempt: Make, train_on: Train) -> None:
    found = train_on(Transitions(average="turn"), [make_attempt(1.0, [10, 30]), make_attempt(0.0, [20])])
    assert [sum(row) for row in found.weights] == pytest.approx([2 / 3, 1 / 3])


def test_the_final_reward_stands_on_every_call_relative_to_the_rollouts(make_episode: Make) -> None:
    group = [make_episode([0.0, 0.0, 1.0]), make_episode([-1.0])]
    found = Transitions(eps=0.0).credit(group, RewardRules())
    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [
        pytest.approx([sqrt(0.5)] * 3),
        pytest.approx([-sqrt(0.5)]),
    ]


def test_statistics_over_calls_are_those_of_the_rows_where_its_neighbours_are_those_of_rollouts(
    make_episode: Make,
) -> None:
    """Calls 3, 1, 2 with rewards 1, 0, -1: rows 1, 1, 1, 0, -1, -1 in one list."""
    group = [make_episode([0.0, 0.0, 1.0]), make_episode([0.0]), make_episode([0.0, -1.0])]
    rows = [1.0, 1.0, 1.0, 0.0, -1.0, -1.0]
    mean = sum(rows) / 6
    std = sqrt(sum((value - mean) ** 2 for value in rows) / 5) + 1e-6

    found = Transitions(statistics="call").credit(group, RewardRules())
    other = Grpo().credit(group, RewardRules())

    assert found is not None
    assert other is not None
    assert [value for credit in found for value in credit.advantages_K] == pytest.approx(
        [(value - mean) / std for value in rows]
    )
    assert [value for credit in other for value in credit.advantages_K] == pytest.approx(rows, abs=1e-5)


@pytest.mark.parametrize("statistics", ["rollout", "call"])
@pytest.mark.parametrize("rewards", [[1.0], [0.5, 0.5], [-1.0, -1.0, -1.0]])
def test_a_group_that_compares_nothing_is_left_out(
    make_episode: Make, statistics: Literal["rollout", "call"], rewards: list[float]
) -> None:
    group = [make_episode([0.0] * at + [value]) for at, value in enumerate(rewards)]
    assert Transitions(statistics=statistics).credit(group, RewardRules()) is None


def test_the_dual_bound_holds_where_its_neighbour_goes_on(make_attempt: Make, train_on: Train) -> None:
    """A ratio of 4 with a negative advantage."""
    group = [make_attempt(1.0, [1, 0]), make_attempt(0.0, [1])]
    ours, other = (train_on(method, group, ratio=lambda token: [1.0, 4.0][token]) for method in (Transitions(), Grpo()))
    assert (ours.gradient[1], ours.stats["clipped_tokens"]) == ([0.0], 1)
    assert other.gradient[1][0] > 0
