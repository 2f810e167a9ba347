"""REINFORCE's credit against plain loops."""

from collections.abc import Callable

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
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
