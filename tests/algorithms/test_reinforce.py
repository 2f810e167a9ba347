"""REINFORCE's credit against plain loops."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Groups = list[list[Episode]]
Train = Callable[..., Any]
REWARDS = [[0.0, 1.0, 2.0], [3.0], [0.5, 0.5]]


def to_go(rewards: list[float], gamma: float, after: float = 0.0) -> list[float]:
    """G_k = sum_j gamma^(j-k) r_j, term by term."""
    count = len(rewards)
    return [
        sum(gamma ** (j - k) * rewards[j] for j in range(k, count)) + gamma ** (count - k) * after for k in range(count)
    ]


def test_every_turn_has_the_return_that_followed_it(make_episode: Make) -> None:
    found = build_algorithm("reinforce").credit([make_episode(item) for item in REWARDS], RewardRules(gamma=0.9))

    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [
        pytest.approx(to_go(item, 0.9), abs=1e-12) for item in REWARDS
    ]


def test_a_cut_episode_goes_on_being_worth_its_value(make_episode: Make) -> None:
    found = build_algorithm("reinforce").credit([make_episode([1.0, 0.0], cut_worth=2.0)], RewardRules(gamma=0.5))

    assert found is not None
    assert found[0].advantages_K.tolist() == to_go([1.0, 0.0], 0.5, after=2.0)


def test_the_others_baseline_does_not_depend_on_the_member_itself(make_episode: Make) -> None:
    found = build_algorithm("reinforce", {"baseline": "others"}).credit(
        [make_episode(item) for item in REWARDS], RewardRules(gamma=0.9)
    )

    outcomes = [to_go(item, 0.9)[0] for item in REWARDS]
    assert found is not None
    for at, credit in enumerate(found):
        baseline = sum(value for other, value in enumerate(outcomes) if other != at) / 2
        assert credit.advantages_K.tolist() == pytest.approx(
            [value - baseline for value in to_go(REWARDS[at], 0.9)], abs=1e-12
        )


def test_only_the_baseline_compares_members(make_episode: Make) -> None:
    group = [make_episode([1.0]), make_episode([1.0])]

    assert build_algorithm("reinforce", {"baseline": "others"}).credit(group, RewardRules()) is None
    alone = build_algorithm("reinforce").credit(group[:1], RewardRules())
    assert alone is not None
    assert alone[0].advantages_K.tolist() == [1.0]


def test_an_update_in_plain_loops(told_groups: Groups, ragged: list[list[Any]], train_on: Train) -> None:
    """Slope of a token: - G_k / 5 attempts, at any ratio; a turn without tokens still pays those before it."""
    attempts = [one for group in ragged for one in group]
    slopes = []
    for one in attempts:
        returns = to_go(one.rewards, 0.9)
        slopes += [[-returns[k] / len(attempts) for k, count in enumerate(one.tokens) for _ in range(count)]]

    found = train_on(
        build_algorithm("reinforce"),
        *told_groups,
        ratio=lambda token: 0.5 + token % 3,
        rules=RewardRules(gamma=0.9),
    )

    for part, expected in zip(found.gradient, slopes, strict=True):
        assert part == pytest.approx(expected, abs=1e-12)
    assert sum(slope > 0 for part in found.gradient for slope in part) == 6  # rewards of -1 push away


def test_what_was_earned_before_a_turn_is_not_its_credit_and_that_is_counted(
    told_groups: Groups, train_on: Train
) -> None:
    """Tokens whose credit leaves something out: three of the first attempt's last turn, two of the last attempt's."""
    found = train_on(build_algorithm("reinforce"), *told_groups)

    assert found.advantages == [[1.5] * 3 + [1.0] * 3, [-1.0] * 4, [-1.0] * 2, [0.5], [0.5, 0.0, 0.0]]
    left_out = sum(a != part[0] for part in found.advantages for a in part)
    assert left_out == 5


def test_actor_critic_subtracts_a_value_and_is_the_same_where_it_is_0(make_known: Make, train_on: Train) -> None:
    """Nearest neighbour: the averages made equal, they differ by V(h_k) at every token and by nothing else."""

    def both(values: list[float]) -> list[list[float]]:
        group = [make_known([0.0, 1.0], values=values, tokens=[2, 1])]
        return [
            train_on(build_algorithm(name, {"average": "sum"}), group).gradient[0]
            for name in ("reinforce", "actor_critic")
        ]

    mine, other = both([0.25, 0.5])
    assert mine == [-1.0] * 3
    assert other == [-0.75, -0.75, -0.5]
    assert both([0.0, 0.0]) == [mine, mine]


def test_only_the_baseline_silences_equal_rewards_and_attempts_alone(told_groups: Groups, train_on: Train) -> None:
    bare = train_on(build_algorithm("reinforce"), *told_groups[1:])
    compared = train_on(build_algorithm("reinforce", {"baseline": "others"}), *told_groups)

    assert bare.gradient == [pytest.approx([1 / 3] * 2), pytest.approx([-1 / 6]), pytest.approx([-1 / 6, 0.0, 0.0])]
    assert [len(group.members) for group in compared.update.groups] == [2, 0, 0]
    assert compared.advantages == [pytest.approx([1.5 + 1.0] * 3 + [1.0 + 1.0] * 3), pytest.approx([-1.0 - 1.5] * 4)]
