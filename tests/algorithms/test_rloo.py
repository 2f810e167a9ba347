"""RLOO's credit against printed numbers and plain loops, and where it parts from its neighbour."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.reinforce import Reinforce
from kifu.algorithms.rloo import Rloo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]


def test_four_members_have_the_printed_advantages_on_every_turn(make_episode: Make) -> None:
    group = [make_episode([0.0] * at + [reward]) for at, reward in enumerate([1.0, 0.0, 0.0, 0.5])]

    found = Rloo().credit(group, RewardRules())

    assert found is not None
    for at, (credit, advantage) in enumerate(zip(found, [0.833333, -0.5, -0.5, 0.166667], strict=True)):
        assert credit.advantages_K.tolist() == pytest.approx([advantage] * (at + 1), abs=5e-7)


@pytest.mark.parametrize("rewards", [[-1.0, 2.0], [-3.0, -1.0, -1.0], [0.5, 0.25, 0.0, 1.0, -2.0]])
def test_the_baseline_is_the_mean_of_the_others(make_episode: Make, rewards: list[float]) -> None:
    found = Rloo().credit([make_episode([value]) for value in rewards], RewardRules())

    assert found is not None
    for at, credit in enumerate(found):
        others = [value for other, value in enumerate(rewards) if other != at]
        assert credit.advantages_K.tolist() == pytest.approx([rewards[at] - sum(others) / len(others)])


@pytest.mark.parametrize("rewards", [[1.0], [0.3, 0.3, 0.3], [-1.0, -1.0]])
def test_a_group_that_compares_nothing_is_left_out(make_episode: Make, rewards: list[float]) -> None:
    assert Rloo().credit([make_episode([value]) for value in rewards], RewardRules()) is None


def test_a_reward_on_the_way_counts_for_every_turn_where_its_neighbour_counts_what_follows(make_episode: Make) -> None:
    """Rewards (1, 0) against (0): the second turn earned nothing more, yet the whole return is credited to it."""
    group = [make_episode([1.0, 0.0]), make_episode([0.0])]

    whole = Rloo().credit(group, RewardRules())
    to_go = Reinforce(baseline="others").credit(group, RewardRules())

    assert whole is not None
    assert to_go is not None
    assert whole[0].advantages_K.tolist() == [1.0, 1.0]
    assert to_go[0].advantages_K.tolist() == [1.0, 0.0]


def test_the_gradient_is_the_sum_over_tokens_and_the_mean_over_trajectories(
    make_attempt: Make, train_on: Callable[..., Any]
) -> None:
    """Ragged turns and one without a token: every token has minus advantage over two, whatever its ratio."""
    found = train_on(Rloo(), [make_attempt(1.0, [2, 0, 3]), make_attempt(0.0, [1])], ratio=lambda token: 1.0 + token)

    assert found.gradient == [pytest.approx([-0.5] * 5), pytest.approx([0.5])]
    assert "clipped_tokens" not in found.stats
