"""GSPO: one ratio a trajectory, clipped as a whole."""

from collections.abc import Callable
from math import exp, log
from typing import Any

import pytest

from kifu.algorithms.grpo import Grpo
from kifu.algorithms.gspo import Gspo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]


def test_credit_is_that_of_grpo_with_the_same_setting(make_episode: Make) -> None:
    """A_i = (R_i - mean) / (std + eps) with n - 1, for two members half their difference over itself by sqrt 2."""
    group = [make_episode([0.0, 2.0]), make_episode([-1.0])]
    found = Gspo(eps=0.0).credit(group, RewardRules())
    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [
        pytest.approx([0.5**0.5] * 2),
        pytest.approx([-(0.5**0.5)]),
    ]


@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0], [-2.0, -2.0]])
def test_a_group_that_compares_nothing_is_left_out(make_episode: Make, rewards: list[float]) -> None:
    assert Gspo().credit([make_episode([value]) for value in rewards], RewardRules()) is None


def test_loss_and_gradient_are_those_written_out_over_trajectories(make_attempt: Make, train_on: Train) -> None:
    """Ragged turns, one empty: s = geometric mean; L = - mean of min(s A, clip(s) A); dL/dlogp_t = - s A / (G |y|)."""
    group = [make_attempt(1.0, [2, 0, 1], name="a"), make_attempt(0.0, [1, 1], name="b")]
    ratios = [1.0002, 0.9999, 1.0003, 0.9996, 1.0001]

    found = train_on(Gspo(std="none"), group, ratio=lambda token: ratios[token])

    first = exp(sum(map(log, ratios[:3])) / 3)
    second = exp(sum(map(log, ratios[3:])) / 2)
    assert 1 - 3e-4 < second < 1 < first < 1 + 4e-4
    assert found.loss == pytest.approx(-(first * 0.5 + second * -0.5) / 2, abs=1e-15)
    assert found.gradient == [pytest.approx([-first * 0.5 / 6] * 3), pytest.approx([second * 0.5 / 4] * 2)]


def test_the_clip_takes_whole_trajectories_out_where_its_neighbour_takes_tokens(
    make_attempt: Make, train_on: Train
) -> None:
    """Token ratios 1.1 and 0.95: their mean is beyond 1.0004, so both tokens stop; none is beyond GRPO's 1.2."""
    group = [make_attempt(1.0, [2]), make_attempt(0.0, [2])]
    ours, other = (
        train_on(method, group, ratio=lambda token: [1.1, 0.95, 1.0, 1.0][token]) for method in (Gspo(), Grpo())
    )
    assert ours.gradient[0] == [0.0, 0.0]
    assert ours.stats["clipped_tokens"] == 2
    assert other.stats["clipped_tokens"] == 0
    assert all(value < 0 for value in other.gradient[0])


def test_ratios_that_cancel_inside_a_trajectory_stop_no_token(make_attempt: Make, train_on: Train) -> None:
    """1.5 and 1/1.5 have a geometric mean of 1; token by token the first is beyond 1.2."""
    group = [make_attempt(1.0, [2]), make_attempt(0.0, [2])]
    ours, other = (
        train_on(method, group, ratio=lambda token: [1.5, 1 / 1.5, 1.0, 1.0][token]) for method in (Gspo(), Grpo())
    )
    assert (ours.stats["clipped_tokens"], other.stats["clipped_tokens"]) == (0, 1)
