"""SimpleTIR: a void turn takes its trajectory out of loss and denominators, not out of the group's statistics."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest

from kifu.algorithms.dapo import Dapo
from kifu.algorithms.simpletir import SimpleTir
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]
Train = Callable[..., Any]


def test_the_printed_masks_leave_three_tokens_in_loss_and_denominator(make_attempt: Make, train_on: Train) -> None:
    """Three tokens and two, the second trajectory void: 3, not 5."""
    found = train_on(SimpleTir(), [make_attempt(1.0, [3]), make_attempt(0.0, [2], void=[0])])

    assert found.weights == [pytest.approx([1 / 3] * 3), [0.0, 0.0]]
    assert found.gradient[1] == [0.0, 0.0]
    assert found.stats["tokens"] == 3
    assert found.update.denominators.tokens == 3


def test_one_void_turn_masks_every_turn_and_the_rewards_stay_in_the_statistics(make_attempt: Make) -> None:
    group = [
        make_attempt(1.0, [1, 2]),
        make_attempt(0.0, [1, 1, 1], void=[1]),
        make_attempt(-1.0, [2, 0]),
        make_attempt(0.5, [4]),
    ]
    found = SimpleTir(eps=0.0).credit(group, RewardRules())

    rewards = [1.0, 0.0, -1.0, 0.5]
    mean = sum(rewards) / 4
    std = sqrt(sum((value - mean) ** 2 for value in rewards) / 3)
    assert found is not None
    for credit, reward in zip(found, rewards, strict=True):
        assert credit.advantages_K.tolist() == pytest.approx([(reward - mean) / std] * credit.advantages_K.size)
    assert [[credit.keeps(turn) for turn in range(credit.advantages_K.size)] for credit in found] == [
        [True, True],
        [False, False, False],
        [True, True],
        [True],
    ]


def test_its_neighbour_trains_void_turns_like_any_other(make_attempt: Make, train_on: Train) -> None:
    group = [make_attempt(1.0, [3]), make_attempt(0.0, [1, 1], void=[0])]
    ours, other = (train_on(method, group).stats["tokens"] for method in (SimpleTir(), Dapo()))
    assert (ours, other) == (3, 5)


@pytest.mark.parametrize(
    "rewards", [[1.0] + [0.0] * 15, [0.0] + [1.0] * 15], ids=["nearly never solved", "nearly always solved"]
)
def test_a_group_outside_the_band_is_left_out(make_attempt: Make, train_on: Train, rewards: list[float]) -> None:
    found = train_on(SimpleTir(), [make_attempt(value, [1]) for value in rewards])
    assert [(group.is_informative, group.copies) for group in found.update.groups] == [(True, 0)]


def test_a_group_without_a_comparison_or_without_an_unmasked_member_is_left_out(make_attempt: Make) -> None:
    void = [make_attempt(float(at), [1], void=[0]) for at in range(2)]
    assert SimpleTir().credit(void, RewardRules()) is None
    assert SimpleTir().credit([make_attempt(1.0, [1])] * 2, RewardRules()) is None
    assert SimpleTir().credit([make_attempt(1.0, [1])], RewardRules()) is None


def test_facts_that_are_not_known_are_named(make_episode: Make) -> None:
    with pytest.raises(ArgumentError, match="is_void"):
        SimpleTir().credit([make_episode([1.0]), make_episode([0.0])], RewardRules())


def test_the_dual_bound_holds_where_the_advantage_is_negative(make_attempt: Make, train_on: Train) -> None:
    group = [make_attempt(1.0, [1]), make_attempt(0.0, [1])]
    found = train_on(SimpleTir(), group, ratio=lambda token: [1.0, 4.0][token])
    assert found.gradient[1] == [0.0]
    assert found.stats["clipped_tokens"] == 1
    without = train_on(SimpleTir(dual=None), group, ratio=lambda token: [1.0, 4.0][token])
    assert without.gradient[1][0] > 0
