"""Residuals and GAE against the source's numbers, a paper's numbers and the telescoping identity."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.credit import Episode, discounted_returns, discounted_sum, gae, td_residuals
from kifu.errors import ArgumentError


def episode(
    rewards: Sequence[float],
    values: Sequence[float] | None,
    *,
    final: float | None = None,
    durations: Sequence[float] | None = None,
    terminated: bool | None = None,
) -> Episode:
    return Episode(
        rewards_K=np.array(rewards, dtype=np.float64),
        values_K=None if values is None else np.array(values, dtype=np.float64),
        terminated=final is None if terminated is None else terminated,
        final_value=final,
        durations_K=None if durations is None else np.array(durations, dtype=np.float64),
    )


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    count = draw(st.integers(1, 8))
    numbers = st.lists(st.floats(-5, 5), min_size=count, max_size=count)
    return episode(
        draw(numbers),
        draw(numbers),
        final=draw(st.none() | st.floats(-5, 5)),
        durations=draw(st.none() | st.lists(st.floats(0.1, 4), min_size=count, max_size=count)),
    )


@pytest.mark.parametrize(
    ("final", "residuals", "total"), [(None, [0.25, 0.13, 0.3], 0.61), (0.4, [0.25, 0.13, 0.66], 0.9016)]
)
def test_residuals_of_the_source_example(final: float | None, residuals: list[float], total: float) -> None:
    found = td_residuals(episode([0, 0, 1], [0.2, 0.5, 0.7], final=final), gamma=0.9)
    np.testing.assert_allclose(found, residuals, rtol=0, atol=1e-12)
    assert discounted_sum(found, gamma=0.9) == pytest.approx(total, abs=1e-12)


@given(episodes(), st.floats(0, 1))
def test_residuals_telescope(item: Episode, gamma: float) -> None:
    assert item.values_K is not None
    total = discounted_sum(td_residuals(item, gamma=gamma), gamma=gamma, durations_K=item.durations_K)
    g_0 = discounted_sum(item.rewards_K, gamma=gamma, durations_K=item.durations_K)
    time = item.rewards_K.size if item.durations_K is None else item.durations_K.sum()
    last = item.final_value or 0.0
    assert total == pytest.approx(g_0 - item.values_K[0] + gamma**time * last, abs=1e-9)


@pytest.mark.parametrize(
    ("lam", "expected"), [(0.95, [0.76075, 0.485, 0.3]), (1.0, [0.8, 0.5, 0.3]), (0.0, [0.3, 0.2, 0.3])]
)
def test_gae_of_the_steppo_example(lam: float, expected: list[float]) -> None:
    found = gae(episode([0, 0, 1], [0.2, 0.5, 0.7]), gamma=1.0, lam=lam)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_gae_over_turns_that_skip_observations() -> None:
    found = gae(episode([0, 0, 1], [0.2, 0.4, 0.6]), gamma=1.0, lam=0.95)
    np.testing.assert_allclose(found, [0.751, 0.58, 0.4], rtol=0, atol=1e-12)


@given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_written_out_sum_of_residuals(item: Episode, gamma: float, lam: float) -> None:
    delta = td_residuals(item, gamma=gamma)
    tau = np.ones(delta.size) if item.durations_K is None else item.durations_K
    expected = [
        sum(gamma ** tau[k:j].sum() * lam ** (j - k) * delta[j] for j in range(k, delta.size))
        for k in range(delta.size)
    ]
    np.testing.assert_allclose(gae(item, gamma=gamma, lam=lam), expected, rtol=1e-9, atol=1e-9)


@given(episodes(), st.floats(0, 1))
def test_gae_with_lambda_one_is_return_minus_value(item: Episode, gamma: float) -> None:
    assert item.values_K is not None
    returns = discounted_returns(item.rewards_K, gamma=gamma, final_value=item.boundary, durations_K=item.durations_K)
    np.testing.assert_allclose(gae(item, gamma=gamma, lam=1.0), returns - item.values_K, rtol=1e-9, atol=1e-9)


def test_the_critic_s_value_of_a_true_end_is_ignored() -> None:
    given_value = episode([0, 1], [0.5, 0.5], final=0.9, terminated=True)
    np.testing.assert_array_equal(
        td_residuals(given_value, gamma=0.9), td_residuals(episode([0, 1], [0.5, 0.5]), gamma=0.9)
    )


def test_a_cut_without_a_final_value_is_refused_instead_of_taken_as_zero() -> None:
    with pytest.raises(ArgumentError, match="was cut and has no `final_value`"):
        td_residuals(episode([0.0], [0.5], terminated=False), gamma=0.9)


def test_residuals_without_values_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"T7: .*`value`.*no values"):
        td_residuals(replace(episode([0.0], None), id="T7"), gamma=0.9)


def test_a_lambda_above_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match="lam must lie"):
        gae(episode([0.0], [0.0]), gamma=0.9, lam=1.5)


def test_an_episode_without_turns_has_no_advantages() -> None:
    assert gae(episode([], []), gamma=0.9, lam=0.9).size == 0
