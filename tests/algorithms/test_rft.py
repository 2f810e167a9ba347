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
