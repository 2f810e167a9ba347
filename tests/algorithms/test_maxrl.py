"""MaxRL: the centred reward in units of the success rate."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.maxrl import MaxRl
from kifu.algorithms.rloo import Rloo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]


def test_one_success_among_four_has_the_printed_advantages(make_episode: Make) -> None:
    group = [make_episode([0.0] * at + [value]) for at, value in enumerate([1.0, 0.0, 0.0, 0.0])]

    found = MaxRl().credit(group, RewardRules())

    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [[3.0], [-1.0] * 2, [-1.0] * 3, [-1.0] * 4]


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [1.0, 1.0, 1.0], [1.0]])
def test_without_a_comparison_or_a_success_the_group_is_left_out(make_episode: Make, rewards: list[float]) -> None:
    assert MaxRl().credit([make_episode([value]) for value in rewards], RewardRules()) is None


def test_a_rare_success_pulls_harder_than_a_common_one_where_its_neighbour_pulls_about_alike(
    make_episode: Make,
) -> None:
    """One success of four against three of four: 3 and 1/3 here, 1 and 1/3 with the baseline of the others."""
    rare = [make_episode([value]) for value in (1.0, 0.0, 0.0, 0.0)]
    common = [make_episode([value]) for value in (1.0, 1.0, 1.0, 0.0)]
    pulls = {}
    for method in (MaxRl(), Rloo()):
        found = [method.credit(group, RewardRules()) for group in (rare, common)]
        pulls[type(method)] = [float(credits[0].advantages_K[0]) for credits in found if credits is not None]
    assert pulls == {MaxRl: pytest.approx([3.0, 1 / 3]), Rloo: pytest.approx([1.0, 1 / 3])}


def test_a_negative_return_is_refused_with_its_trajectory(make_attempt: Make) -> None:
    with pytest.raises(ArgumentError, match=r"two, `reward`: a return of -1\.0"):
        MaxRl().credit([make_attempt(1.0, [1], name="one"), make_attempt(-1.0, [1], name="two")], RewardRules())


def test_the_gradient_takes_no_ratio(make_attempt: Make, train_on: Callable[..., Any]) -> None:
    group = [make_attempt(1.0, [2, 0]), make_attempt(0.0, [1])]
    found = train_on(MaxRl(), group, ratio=lambda token: 3.0)
    assert found.gradient == [pytest.approx([-0.5] * 2), pytest.approx([0.5])]
