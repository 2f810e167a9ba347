"""Group advantages against papers' numbers, written-out means and invariances."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.credit import (
    PopulationStd,
    SampleStd,
    Scale,
    Unscaled,
    centred,
    group_relative,
    is_degenerate,
    leave_one_out,
    mean_reward,
)
from kifu.errors import ArgumentError

REWARDS = st.lists(st.floats(-3, 3), min_size=2, max_size=10)
SCALES: list[Scale] = [Unscaled(), SampleStd(), PopulationStd()]


def numbers(found: tuple[float | None, ...]) -> list[float]:
    assert all(value is not None for value in found)
    return [value for value in found if value is not None]


def test_leave_one_out_of_the_rloo_example() -> None:
    found = numbers(leave_one_out([1, 0, 0, 0.5]))
    np.testing.assert_allclose(found, [0.833333, -0.5, -0.5, 0.166667], rtol=0, atol=5e-7)


def test_sample_and_population_spread_of_the_printed_examples() -> None:
    np.testing.assert_allclose(
        numbers(group_relative([1, 0, 0, 0], scale=SampleStd())), [1.499997, *[-0.499999] * 3], rtol=0, atol=5e-7
    )
    np.testing.assert_allclose(
        numbers(group_relative([1, 1, 0, 0], scale=SampleStd(eps=1e-4))), [0.865875] * 2 + [-0.865875] * 2, atol=5e-7
    )
    np.testing.assert_allclose(
        numbers(group_relative([1, 1, 0, 0], scale=PopulationStd(eps=0.0))), [1, 1, -1, -1], rtol=0, atol=1e-12
    )


@given(REWARDS)
def test_the_scaled_advantage_is_the_centred_one_over_numpy_s_spread(rewards: list[float]) -> None:
    if max(rewards) - min(rewards) < 1e-3:
        return
    mean = np.mean(rewards)
    for scale, ddof in ((SampleStd(eps=1e-4), 1), (PopulationStd(eps=1e-4), 0)):
        expected = (np.array(rewards) - mean) / (np.std(rewards, ddof=ddof) + 1e-4)
        np.testing.assert_allclose(numbers(group_relative(rewards, scale=scale)), expected, rtol=1e-9, atol=1e-9)


@given(REWARDS)
def test_leave_one_out_subtracts_the_mean_of_the_others(rewards: list[float]) -> None:
    expected = [r - np.mean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    np.testing.assert_allclose(numbers(leave_one_out(rewards)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 40))
def test_equal_rewards_give_exactly_zero(scale: Scale, value: float, count: int) -> None:
    assert group_relative([value] * count, scale=scale) == (0.0,) * count
    assert is_degenerate([value] * count)
    assert mean_reward([value] * count) == value
    if count > 1:
        assert leave_one_out([value] * count) == (0.0,) * count


def test_eight_rewards_of_0_35_give_exactly_zero() -> None:
    """A mean of floating-point thirds and tenths is where a naive centring leaves dust."""
    assert leave_one_out([0.35] * 8) == (0.0,) * 8
    assert group_relative([0.35] * 8, scale=SampleStd()) == (0.0,) * 8


BARE: list[Scale] = [Unscaled(), SampleStd(eps=0.0), PopulationStd(eps=0.0)]


@pytest.mark.parametrize("scale", BARE)
@given(parts=st.lists(st.floats(0.01, 100.0), min_size=2, max_size=8), seed=st.integers(0, 1000))
def test_one_return_summed_in_two_orders_compares_nothing(scale: Scale, parts: list[float], seed: int) -> None:
    """Without an eps that covers it, rounding noise would be divided by itself."""
    again = np.random.default_rng(seed).permutation(parts)
    returns = [sum(parts), float(sum(again))]
    assert is_degenerate(returns)
    assert group_relative(returns, scale=scale) == leave_one_out(returns) == (0.0, 0.0)


@pytest.mark.parametrize("scale", BARE)
def test_rewards_whose_squares_vanish_compare_nothing(scale: Scale) -> None:
    assert group_relative([0.0, 1e-200], scale=scale) == (0.0, 0.0)
    assert is_degenerate([0.0, 5e-324])


@pytest.mark.parametrize("rewards", [[0.3, 0.3 + 1e-13], [0.0, 1e-100], [1e9, 1e9 + 1e-5], [-1e-20, 1e-20]], ids=str)
def test_rewards_that_differ_by_more_than_rounding_are_compared(rewards: list[float]) -> None:
    assert not is_degenerate(rewards)
    found = numbers(group_relative(rewards, scale=PopulationStd(eps=0.0)))
    np.testing.assert_allclose(found, [-1.0, 1.0], rtol=1e-3)


@pytest.mark.parametrize("scale", SCALES)
@given(rewards=REWARDS, seed=st.integers(0, 1000))
def test_the_order_of_members_changes_nothing(scale: Scale, rewards: list[float], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rewards))
    found = group_relative(rewards, scale=scale)
    assert group_relative([rewards[i] for i in order], scale=scale) == tuple(found[i] for i in order)


@pytest.mark.parametrize("scale", SCALES)
@given(rewards=REWARDS, at=st.integers(0, 10))
def test_a_member_without_a_reward_changes_nothing_for_the_others(scale: Scale, rewards: list[float], at: int) -> None:
    at = min(at, len(rewards))
    with_absent: list[float | None] = [*rewards[:at], None, *rewards[at:]]
    for found, expected in (
        (group_relative(with_absent, scale=scale), group_relative(rewards, scale=scale)),
        (leave_one_out(with_absent), leave_one_out(rewards)),
    ):
        assert found[at] is None
        assert found[:at] + found[at + 1 :] == expected


def test_one_reward_left_compares_nothing() -> None:
    assert is_degenerate([1.0, None, None])
    assert is_degenerate([None, None])
    assert group_relative([1.0, None], scale=SampleStd()) == (0.0, None)
    assert mean_reward([None]) is None
    with pytest.raises(ArgumentError, match="at least 2 attempts, got 1"):
        leave_one_out([1.0, None])


def test_two_different_rewards_compare() -> None:
    assert not is_degenerate([0.0, None, 1e-12])


def test_a_constant_baseline_is_subtracted_from_what_exists() -> None:
    assert centred([1.0, None, 0.0], baseline=0.25) == (0.75, None, -0.25)


def test_the_spreads_of_the_starpo_example() -> None:
    """Reciprocals of the scaled advantage of the top member recover the printed sample deviations."""
    for rewards, spread in (([1.0, 0, 0, 0], 0.5), ([1.0, 1, 0, 0], 0.577350)):
        top = group_relative(rewards, scale=SampleStd(eps=0.0))[0]
        assert top is not None
        assert (1.0 - sum(rewards) / 4) / top == pytest.approx(spread, abs=5e-7)
    assert sqrt(1 / 3) == pytest.approx(0.577350, abs=5e-7)


def test_a_reward_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rewards of a group must be finite"):
        group_relative([1.0, float("nan")], scale=Unscaled())
