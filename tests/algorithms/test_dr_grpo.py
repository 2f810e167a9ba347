"""Dr. GRPO: neither the spread nor the length divides."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.algorithms.dr_grpo import DrGrpo
from kifu.algorithms.grpo import Grpo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ExperimentError

Make = Callable[..., Episode]
Train = Callable[..., Any]


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 0.5], [-1.0, -3.0], [10.0, 0.0, 0.0]])
def test_the_advantage_is_the_reward_minus_the_mean(make_episode: Make, rewards: list[float]) -> None:
    group = [make_episode([0.0] * at + [value]) for at, value in enumerate(rewards)]

    found = DrGrpo().credit(group, RewardRules())

    mean = sum(rewards) / len(rewards)
    assert found is not None
    for at, credit in enumerate(found):
        assert credit.advantages_K.tolist() == pytest.approx([rewards[at] - mean] * (at + 1))


def test_every_token_weighs_the_same_whatever_the_lengths(make_attempt: Make, train_on: Train) -> None:
    """Two trajectories of 6 and 1 tokens, a constant of 8: 1/16 a token; GRPO gives 1/12 and 1/2."""
    group = [make_attempt(1.0, [2, 0, 4]), make_attempt(0.0, [1])]

    assert train_on(DrGrpo(constant=8.0), group).weights == [[1 / 16] * 6, [1 / 16]]
    assert train_on(Grpo(), group).weights == [pytest.approx([1 / 12] * 6), [1 / 2]]


def test_a_wider_spread_pulls_harder_where_its_neighbour_makes_spreads_equal(
    make_attempt: Make, train_on: Train
) -> None:
    narrow, wide = ([make_attempt(high, [1]), make_attempt(0.0, [1])] for high in (0.5, 1.0))

    ours = [train_on(DrGrpo(), group).advantages[0] for group in (narrow, wide)]
    neighbours = [train_on(Grpo(eps=0.0), group).advantages[0] for group in (narrow, wide)]

    assert ours == [[0.25], [0.5]]
    assert neighbours[0] == pytest.approx(neighbours[1])


@pytest.mark.parametrize("rewards", [[1.0], [0.2, 0.2, 0.2]])
def test_a_group_that_compares_nothing_is_left_out(make_episode: Make, rewards: list[float]) -> None:
    assert DrGrpo().credit([make_episode([value]) for value in rewards], RewardRules()) is None


@pytest.mark.parametrize("constant", [0.0, -1.0])
def test_a_constant_that_divides_by_nothing_is_refused(constant: float) -> None:
    with pytest.raises(ExperimentError, match="algorithm `dr_grpo`, option `constant`"):
        build_algorithm("dr_grpo", {"constant": constant})


def test_bounds_hold_per_token(make_attempt: Make, train_on: Train) -> None:
    found = train_on(
        DrGrpo(constant=1.0),
        [make_attempt(1.0, [2]), make_attempt(0.0, [2])],
        ratio=lambda token: [1.3, 0.7][token % 2],
    )
    assert found.gradient == [pytest.approx([0.0, -0.7 / 4]), pytest.approx([1.3 / 4, 0.0])]
    assert found.stats["clipped_tokens"] == 2
