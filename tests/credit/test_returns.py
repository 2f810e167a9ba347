"""Returns against the formulas of the source and against sums written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.credit import discounted_returns, discounted_sum, macro_reward, macro_value
from kifu.errors import ArgumentError

REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=12)
GAMMA = st.floats(0, 1)


def test_return_of_the_source_example_is_8_29() -> None:
    assert discounted_returns([1, 0, 0, 10], gamma=0.9)[0] == pytest.approx(8.29, abs=1e-12)


def test_gigpo_step_returns_of_the_specification() -> None:
    np.testing.assert_allclose(discounted_returns([0, 0, 10], gamma=0.95), [9.025, 9.5, 10], rtol=0, atol=1e-12)
    np.testing.assert_allclose(discounted_returns([0, 10], gamma=0.95), [9.5, 10], rtol=0, atol=1e-12)


@given(REWARDS, GAMMA)
def test_every_return_is_the_written_out_sum(rewards: list[float], gamma: float) -> None:
    expected = [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    np.testing.assert_allclose(discounted_returns(rewards, gamma=gamma), expected, rtol=1e-12, atol=1e-12)


@given(REWARDS, GAMMA, st.floats(-5, 5))
def test_returns_obey_the_recursion_with_a_final_value(rewards: list[float], gamma: float, last: float) -> None:
    returns = [*discounted_returns(rewards, gamma=gamma, final_value=last), last]
    for t, reward in enumerate(rewards):
        assert returns[t] == pytest.approx(reward + gamma * returns[t + 1], abs=1e-12)


def test_macro_action_of_the_source_example_is_5_23_and_12_52() -> None:
    assert macro_reward([1, 2, 3], gamma=0.9) == pytest.approx(5.23, abs=1e-12)
    assert macro_value([1, 2, 3], gamma=0.9, next_value=10) == pytest.approx(12.52, abs=1e-12)


@given(st.lists(REWARDS, min_size=1, max_size=5), st.floats(0.1, 1))
def test_macro_actions_with_durations_return_what_their_ticks_return(ticks: list[list[float]], gamma: float) -> None:
    """Grouping ticks into macro-actions changes the bookkeeping, not the return at their starts."""
    flat = discounted_returns([r for part in ticks for r in part], gamma=gamma)
    starts = np.cumsum([0, *[len(part) for part in ticks[:-1]]])
    grouped = discounted_returns(
        [macro_reward(part, gamma=gamma) for part in ticks], gamma=gamma, durations_K=[len(part) for part in ticks]
    )
    np.testing.assert_allclose(grouped, flat[starts], rtol=1e-10, atol=1e-10)


def test_discounted_sum_counts_the_time_before_each_turn() -> None:
    assert discounted_sum([1, 1, 1], gamma=0.5, durations_K=[1, 2, 7]) == pytest.approx(1 + 0.5 + 0.125)
    assert discounted_sum([], gamma=0.5) == 0.0


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_a_discount_outside_the_unit_interval_is_refused(gamma: float) -> None:
    with pytest.raises(ArgumentError, match="gamma must lie in"):
        discounted_returns([1.0], gamma=gamma)


@pytest.mark.parametrize(
    ("rewards", "durations", "message"),
    [
        ([1.0, float("nan")], None, "rewards must be finite, found nan at 1"),
        ([[1.0]], None, "one axis"),
        ([1.0, 2.0], [1.0], "1 durations for 2 turns"),
        ([1.0], [0.0], "durations must be > 0"),
    ],
)
def test_unusable_numbers_are_named(rewards: list[float], durations: list[float] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discounted_returns(rewards, gamma=0.9, durations_K=durations)
