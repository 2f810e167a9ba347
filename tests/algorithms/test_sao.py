"""SAO: GAE over sampled tokens and a band around ratio 1."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.ppo import Ppo
from kifu.algorithms.sao import Sao
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]
Train = Callable[..., Any]


def gae(rewards: list[float], values: list[float], lam: float) -> list[float]:
    """A_t = sum_l lam^l (r + V' - V), undiscounted, term by term."""
    delta = [r + after - v for r, v, after in zip(rewards, values, [*values[1:], 0.0], strict=True)]
    return [sum(lam ** (at - start) * delta[at] for at in range(start, len(delta))) for start in range(len(delta))]


def test_observations_between_turns_are_skipped_with_the_printed_advantages(make_attempt: Make) -> None:
    """Values .2, .4 | two observation tokens | .6, reward 1: .751, .58 and .4."""
    found = Sao().credit([make_attempt(1.0, [2, 1], token_values=[[0.2, 0.4], [0.6]])], RewardRules())

    assert found is not None
    assert found[0].token_advantages_K is not None
    assert [tokens.tolist() for tokens in found[0].token_advantages_K] == [
        pytest.approx([0.751, 0.58], abs=5e-7),
        pytest.approx([0.4]),
    ]
    assert found[0].advantages_K.tolist() == pytest.approx([(0.751 + 0.58) / 2, 0.4])


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_ragged_turns_are_one_sequence_of_tokens(make_attempt: Make, lam: float) -> None:
    """An empty turn in the middle: its target is that of the token after it."""
    values = [[0.1, -0.2, 0.3], [], [0.5], [0.25, 0.75]]
    found = Sao(lam=lam).credit([make_attempt(-2.0, [3, 0, 1, 2], token_values=values)], RewardRules())

    flat = [value for turn in values for value in turn]
    expected = gae([0.0] * 5 + [-2.0], flat, lam)
    assert found is not None
    credit = found[0]
    assert credit.token_advantages_K is not None
    assert credit.value_targets_K is not None
    assert [value for turn in credit.token_advantages_K for value in turn] == pytest.approx(expected)
    firsts = [expected[at] + flat[at] for at in (0, 3, 3, 4)]
    assert credit.value_targets_K.tolist() == pytest.approx(firsts)


def test_with_values_per_turn_the_residuals_run_over_turns(make_attempt: Make) -> None:
    found = Sao().credit([make_attempt(1.0, [2, 4, 1], values=[0.2, 0.5, 0.7])], RewardRules())

    expected = gae([0.0, 0.0, 1.0], [0.2, 0.5, 0.7], 0.95)
    assert found is not None
    assert found[0].token_advantages_K is None
    assert found[0].advantages_K.tolist() == pytest.approx(expected)


def test_one_rollout_a_task_is_enough_and_a_critic_is_needed(make_attempt: Make, make_episode: Make) -> None:
    plan = Sao().plan
    assert (plan.needs_group, plan.needs_value) == (False, True)
    assert Sao().credit([make_attempt(0.0, [1], values=[0.0])], RewardRules()) is not None
    with pytest.raises(ArgumentError, match="values"):
        Sao().credit([make_episode([1.0])], RewardRules())


def test_a_ratio_outside_the_band_has_no_gradient_whatever_the_sign_where_its_neighbour_lets_half_of_them_go_on(
    make_attempt: Make, train_on: Train
) -> None:
    """The printed ratios .5, 1.1, 1.5, .85 weigh 0, 1.1, 0, .85; PPO keeps .5 for gains and 1.5 for losses."""
    ratios = [0.5, 1.1, 1.5, 0.85] * 2
    groups = [[make_attempt(reward, [4], values=[0.5])] for reward in (1.0, 0.0)]

    ours = train_on(Sao(), *groups, ratio=lambda token: ratios[token])
    other = train_on(Ppo(whiten=False, clip_high=0.28, lam=0.95), *groups, ratio=lambda token: ratios[token])

    assert ours.gradient == [
        pytest.approx([-0.5 * factor / 8 for factor in (0.0, 1.1, 0.0, 0.85)]),
        pytest.approx([0.5 * factor / 8 for factor in (0.0, 1.1, 0.0, 0.85)]),
    ]
    assert ours.stats["clipped_tokens"] == 4
    assert ours.weights == [[0.125] * 4] * 2, "a masked token stays in the denominator"
    assert other.gradient == [
        pytest.approx([-0.5 * factor / 8 for factor in (0.5, 1.1, 0.0, 0.85)]),
        pytest.approx([0.5 * factor / 8 for factor in (0.0, 1.1, 1.5, 0.85)]),
    ]
