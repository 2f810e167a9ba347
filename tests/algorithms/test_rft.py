"""Rejection-sampling fine-tuning: who passes, over what the loss is averaged, and how it differs from REINFORCE."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Known = Callable[..., Episode]


def kept(options: dict[str, Any], group: list[Episode]) -> list[bool] | None:
    found = build_algorithm("rft", options).credit(group, RewardRules())
    if found is None:
        return None
    return [all(credit.keeps(turn) for turn in range(credit.advantages_K.size)) for credit in found]


@pytest.mark.parametrize(
    ("options", "outcomes", "expected"),
    [
        ({}, [1.0, 0.0, 0.9, 1.5], [True, False, False, True]),
        ({"min_reward": 0.5}, [1.0, 0.0, 0.9, 1.5], [True, False, True, True]),
        ({}, [1.0, None, 1.0, 0.0], [True, False, True, False]),
        ({}, [0.0, -1.0, 0.5, 0.0], None),
        ({}, [1.0, 1.0, 1.0, 1.0], [True] * 4),
    ],
)
def test_attempts_that_earn_enough_pass(
    make_known: Known, options: dict[str, Any], outcomes: list[float | None], expected: list[bool] | None
) -> None:
    assert kept(options, [make_known([0.0, 0.0], outcome=outcome) for outcome in outcomes]) == expected


def test_long_attempts_and_those_with_few_calls_are_rejected(make_known: Known) -> None:
    group = [
        make_known([0.0] * 3, tokens=[2, 2, 2], outcome=1.0, calls_tool=[True, True, False]),
        make_known([0.0] * 3, tokens=[2, 3, 2], outcome=1.0, calls_tool=[True, True, True]),
        make_known([0.0], tokens=[1], outcome=1.0, calls_tool=[True]),
    ]

    assert kept({"max_tokens": 6}, group) == [True, False, True]
    assert kept({"min_calls": 2}, group) == [True, True, False]
    assert kept({"max_tokens": 6, "min_calls": 3}, group) is None


def test_the_loss_is_the_mean_over_tokens_of_what_passed(make_known: Known, train_on: Callable[..., Any]) -> None:
    """Four tokens pass, each at log-probability -1: weight 1/4 each, and nothing of the failure."""
    group = [
        make_known([0.0, 1.0], tokens=[1, 3], outcome=1.0),
        make_known([0.0], tokens=[5], outcome=0.0),
    ]

    found = train_on(build_algorithm("rft"), group)

    assert found.weights == [[0.25] * 4, [0.0] * 5]
    assert found.loss == pytest.approx(1.0)


def test_reinforce_divides_by_what_was_tried(make_known: Known, train_on: Callable[..., Any]) -> None:
    """One success of two attempts: the same direction, half as long."""
    group = [make_known([1.0], tokens=[3], outcome=1.0), make_known([0.0], tokens=[3], outcome=0.0)]

    mine = train_on(build_algorithm("rft", {"average": "trajectory"}), group).gradient
    other = train_on(build_algorithm("reinforce", {"average": "trajectory"}), group).gradient

    assert mine[0] == pytest.approx([-1 / 3] * 3)
    assert other[0] == pytest.approx([-1 / 6] * 3)
    assert mine[1] == other[1] == [0.0] * 3


def test_an_update_in_plain_loops_with_rejections_counted(
    told_groups: list[list[Episode]], ragged: list[list[Any]], train_on: Callable[..., Any]
) -> None:
    """Ragged groups, one of a single attempt, one of equal rewards, rewards below 0: - 1 / tokens of what passed."""
    passing = [one for group in ragged for one in group if sum(one.rewards) >= 0.5]
    tokens = sum(sum(one.tokens) for one in passing)
    slopes = [
        [-1.0 / tokens if sum(one.rewards) >= 0.5 else 0.0] * sum(one.tokens)
        for group in ragged
        if any(sum(one.rewards) >= 0.5 for one in group)
        for one in group
    ]

    found = train_on(build_algorithm("rft", {"min_reward": 0.5}), *told_groups, ratio=lambda token: 0.3 + token)

    assert tokens == 10
    assert found.gradient == [pytest.approx(part) for part in slopes]
    assert [group.is_informative for group in found.update.groups] == [True, False, True]
    assert sum(slope == 0.0 for part in found.gradient for slope in part) == 4
    assert found.stats["tokens"] == 10


def test_a_single_attempt_that_passes_is_imitated_and_equal_ones_all_are(
    make_known: Known, train_on: Callable[..., Any]
) -> None:
    alone = train_on(build_algorithm("rft"), [make_known([-0.5, 1.5], tokens=[0, 2], outcome=1.0)])
    equal = train_on(build_algorithm("rft"), [make_known([1.0], tokens=[size], outcome=1.0) for size in (1, 3)])

    assert alone.gradient == [[-0.5, -0.5]]
    assert equal.gradient == [[-0.25], [-0.25] * 3]


def test_a_reward_below_0_counts_against_reinforce_and_not_here(
    make_known: Known, train_on: Callable[..., Any]
) -> None:
    group = [make_known([1.0], outcome=1.0, id="T1"), make_known([-2.0], outcome=-2.0, id="T2")]

    mine, other = (train_on(build_algorithm(name), group).gradient for name in ("rft", "reinforce"))

    assert mine == [[-1.0], [0.0]]
    assert other == [[-0.5], [1.0]]
