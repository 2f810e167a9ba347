"""GAE over tokens against printed numbers and loops in the papers' notation."""

from collections.abc import Sequence

import numpy as np
import pytest

from kifu.credit import Episode, TurnFacts
from kifu.credit.gae_tokens import (
    bilevel_gae,
    cross_segment_gae,
    episode_token_gae,
    length_lambda,
    paid_at_last_tokens,
    skip_observation_gae,
    token_gae,
    token_values,
)
from kifu.errors import ArgumentError

MASK = np.array([True, True, False, False, True])


def written_out(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float, after: float
) -> list[float]:
    """A_n = sum_l (gamma lam)^l delta_{n+l}, every sum term by term."""
    following = [*values[1:], after]
    delta = [r + gamma * w - v for r, v, w in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * lam) ** (at - start) * delta[at] for at in range(start, len(delta))) for start in range(len(delta))
    ]


def test_observations_are_skipped_as_printed_whatever_the_critic_says_of_them() -> None:
    values = np.array([0.2, 0.4, np.nan, np.inf, 0.6])
    found = skip_observation_gae([0, 0, 0, 0, 1], values, MASK, gamma=1.0, lam=0.95)
    np.testing.assert_allclose(found, [0.751, 0.58, 0.0, 0.0, 0.4], rtol=0, atol=1e-12)


def test_without_skipping_the_printed_numbers_are_others() -> None:
    found = token_gae([0, 0, 0, 0, 1], [0.2, 0.4, 0.9, 0.9, 0.6], gamma=1.0, lam=0.95)
    np.testing.assert_allclose(found[:2], [0.74359, 0.5722], rtol=0, atol=5e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_every_token_has_its_sum_of_residuals(gamma: float, lam: float) -> None:
    rewards, values = [0.5, -1.0, 0.0, 2.0], [0.1, -0.4, 0.3, 0.9]
    found = token_gae(rewards, values, gamma=gamma, lam=lam, final_value=0.7)
    np.testing.assert_allclose(found, written_out(rewards, values, gamma=gamma, lam=lam, after=0.7), rtol=0, atol=1e-12)


def test_two_levels_as_the_official_function_printed_them() -> None:
    values = np.arange(1, 11) / 10
    found = bilevel_gae([1, 1], [values[:5], values[5:]], gamma=1.0, lam=1.0, turn_gamma=0.95, turn_lam=1.0)
    advantages = np.concatenate(found)
    np.testing.assert_allclose(advantages, [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(advantages + values, [1.95] * 5 + [1.0] * 5, rtol=0, atol=1e-12)


def test_two_levels_of_the_small_printed_example() -> None:
    found = bilevel_gae([1, 2], [np.full(3, 0.5), np.full(3, 0.2)], gamma=0.9, lam=0.8, turn_gamma=0.95, turn_lam=0.8)
    np.testing.assert_allclose(
        np.concatenate(found), [0.980867, 1.43176, 2.058, 0.89872, 1.276, 1.8], rtol=0, atol=5e-7
    )
    np.testing.assert_allclose([found[0][-1] + 0.5, found[1][-1] + 0.2], [2.558, 2.0], rtol=0, atol=1e-12)


def test_a_turn_of_reward_zero_stays_a_turn_and_may_be_the_last() -> None:
    values = [np.array([0.1, 0.3]), np.array([0.2]), np.array([0.4, 0.5])]
    found = bilevel_gae([1.0, 0.0, 0.0], values, gamma=0.9, lam=0.7, turn_gamma=0.8, turn_lam=0.6)

    above = written_out([1.0, 0.0, 0.0], [0.3, 0.2, 0.5], gamma=0.8, lam=0.6, after=0.0)
    for found_N, values_N, worth in zip(found, values, above, strict=True):
        rewards = [0.0] * (values_N.size - 1) + [worth + float(values_N[-1])]
        expected = written_out(rewards, values_N.tolist(), gamma=0.9, lam=0.7, after=0.0)
        np.testing.assert_allclose(found_N, expected, rtol=0, atol=1e-12)


def test_a_cut_hands_its_value_to_the_last_turn_end() -> None:
    found = bilevel_gae([0.0], [np.array([0.5])], gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0, final_value=4.0)
    np.testing.assert_allclose(found[0], [0.5 * 4.0 - 0.5])


def test_what_an_empty_turn_is_paid_goes_to_the_token_before_it() -> None:
    paid = paid_at_last_tokens([7.0, 1.0, 2.0, 3.0], lengths_K=[0, 2, 0, 1])
    assert [item.tolist() for item in paid] == [[], [0.0, 3.0], [], [3.0]]


def test_tokens_of_an_episode_are_one_chain_over_its_turns() -> None:
    values = [np.array([0.2, 0.4]), np.array([0.6])]
    episode = Episode(
        rewards_K=np.array([0.0, 1.0]),
        terminated=True,
        turns=tuple(TurnFacts(num_tokens=item.size, values_N=item) for item in values),
    )
    found = episode_token_gae(episode, gamma=1.0, lam=0.95)
    np.testing.assert_allclose(np.concatenate(found), [0.751, 0.58, 0.4], rtol=0, atol=1e-12)
    assert [item.size for item in found] == [2, 1]


def test_later_contexts_shrink_earlier_ones_as_printed() -> None:
    lam = length_lambda(100)
    assert lam == pytest.approx(0.993333, abs=5e-7)
    found = cross_segment_gae([np.array([0.2, 0.4]), np.zeros(3)], gamma=1.0, lam=lam)
    np.testing.assert_allclose(found[0], [0.196027, 0.392053], rtol=0, atol=5e-7)


def test_every_context_is_shrunk_by_all_tokens_after_it() -> None:
    found = cross_segment_gae([np.array([1.0]), np.array([1.0, 1.0]), np.array([1.0] * 3)], gamma=0.9, lam=0.5)
    assert [item[0] for item in found] == pytest.approx([0.45**5, 0.45**3, 1.0], abs=1e-15)


@pytest.mark.parametrize(("length", "lam"), [(0, 0.0), (1, 1 / 3), (2, 2 / 3), (1500, 1 - 1 / 2250)])
def test_lambda_grows_with_the_length(length: int, lam: float) -> None:
    assert length_lambda(length) == pytest.approx(lam, abs=1e-15)


def test_missing_or_misaligned_token_values_name_trajectory_turn_and_field() -> None:
    def with_values(values_N: np.ndarray | None) -> Episode:
        turns = (TurnFacts(num_tokens=1, values_N=np.zeros(1)), TurnFacts(num_tokens=2, values_N=values_N))
        return Episode(rewards_K=np.zeros(2), terminated=True, id="T7", turns=turns)

    with pytest.raises(ArgumentError, match="T7, turn 1: the method needs `value` of every token"):
        token_values(with_values(None))
    with pytest.raises(ArgumentError, match="T7, turn 1: 3 `value`s for 2 tokens"):
        token_values(with_values(np.zeros(3)))
    with pytest.raises(ArgumentError, match="must align"):
        skip_observation_gae([0.0], [0.0, 1.0], np.array([True]), gamma=1.0, lam=1.0)
    with pytest.raises(ArgumentError, match="lam must lie"):
        token_gae([0.0], [0.0], gamma=1.0, lam=1.1)
