"""StarPO-S: a critic's credit on the groups that spread most."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.ppo import Ppo
from kifu.algorithms.starpo_s import StarPoS
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]
REWARDS = [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


@pytest.fixture
def groups(make_attempt: Make) -> list[list[Episode]]:
    """The printed step: two turns each, a critic that says .5 and .25."""
    return [[make_attempt(reward, [1, 2], values=[0.5, 0.25]) for reward in rewards] for rewards in REWARDS]


def test_the_printed_quarter_is_trained_and_the_rest_is_left_out(groups: list[list[Episode]], train_on: Train) -> None:
    found = train_on(StarPoS(), *groups)

    assert [group.copies for group in found.update.groups] == [0, 0, 1, 0]
    assert [group.is_informative for group in found.update.groups] == [False, True, True, False]
    assert found.update.denominators.trajectories == 4


def test_credit_is_return_minus_value_at_every_turn(groups: list[list[Episode]]) -> None:
    """Gamma and lambda are 1; the critic's target is the return."""
    found = StarPoS().credit(groups[1], RewardRules())

    assert found is not None
    assert found[0].advantages_K.tolist() == pytest.approx([0.5, 0.75])
    assert found[1].advantages_K.tolist() == pytest.approx([-0.5, -0.25])
    targets = [credit.value_targets_K.tolist() for credit in found if credit.value_targets_K is not None]
    assert targets == [pytest.approx([value, value]) for value in REWARDS[1]]


def test_equal_rewards_carry_no_signal_even_where_a_discount_tells_lengths_apart(make_attempt: Make) -> None:
    group = [make_attempt(1.0, [1], values=[0.0]), make_attempt(1.0, [1, 1], values=[0.0, 0.0])]
    assert StarPoS().credit(group, RewardRules(gamma=0.5)) is None
    assert StarPoS().credit(group[:1], RewardRules()) is None


def test_its_neighbour_trains_every_group(groups: list[list[Episode]], train_on: Train) -> None:
    found = train_on(Ppo(), *groups)
    assert [group.copies for group in found.update.groups] == [1, 1, 1, 1]


def test_the_upper_bound_is_higher_than_the_lower_one_is_low(groups: list[list[Episode]], train_on: Train) -> None:
    """Two winners and two losers of three tokens: at 1.25 nobody is bound, at 1.3 the winners, at .75 the losers."""
    bound = [train_on(StarPoS(whiten=False), *groups, ratio=lambda token, r=r: r).stats for r in (1.25, 1.3, 0.75)]
    assert [stats["clipped_tokens"] for stats in bound] == [0, 6, 6]


def test_it_needs_a_critic_and_groups() -> None:
    plan = StarPoS().plan
    assert (plan.needs_value, plan.needs_group, plan.whiten) == (True, True, True)
