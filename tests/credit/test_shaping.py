"""Shaping: the printed example, the telescoping sum, and what happens when a condition is broken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.credit import check_shaping, discounted_sum, shaping_rewards
from kifu.errors import ArgumentError

POTENTIALS = st.lists(st.floats(-5, 5), min_size=1, max_size=10)


def test_shaping_of_the_printed_example_telescopes_only_when_discounted() -> None:
    found = shaping_rewards([0.1, 0.5, 0.3], gamma=0.9, terminated=True)
    np.testing.assert_allclose(found, [0.35, -0.23, -0.3], rtol=0, atol=1e-12)
    assert discounted_sum(found, gamma=0.9) == pytest.approx(-0.1, abs=1e-12)
    assert found.sum() == pytest.approx(-0.18, abs=1e-12)


@given(POTENTIALS, st.floats(0, 1), st.floats(-5, 5), st.booleans())
def test_the_discounted_sum_is_fixed_by_start_and_boundary(
    potentials: list[float], gamma: float, last: float, terminated: bool
) -> None:
    found = shaping_rewards(potentials, gamma=gamma, terminated=terminated, final_potential=last)
    boundary = 0.0 if terminated else gamma ** len(potentials) * last
    assert discounted_sum(found, gamma=gamma) == pytest.approx(-potentials[0] + boundary, abs=1e-9)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 4)), min_size=1, max_size=6), st.floats(0, 1))
def test_it_telescopes_over_turns_of_different_duration(turns: list[tuple[float, float]], gamma: float) -> None:
    potentials, durations = [turn[0] for turn in turns], [turn[1] for turn in turns]
    found = shaping_rewards(potentials, gamma=gamma, terminated=False, final_potential=2.0, durations_K=durations)
    expected = -potentials[0] + gamma ** sum(durations) * 2.0
    assert discounted_sum(found, gamma=gamma, durations_K=durations) == pytest.approx(expected, abs=1e-9)


def test_a_cut_keeps_its_potential_and_a_true_end_does_not() -> None:
    kept = shaping_rewards([0.0], gamma=1.0, terminated=False, final_potential=0.7)
    ended = shaping_rewards([0.0], gamma=1.0, terminated=True, final_potential=0.7)
    assert (kept[0], ended[0]) == (0.7, 0.0)


def test_a_cut_without_a_potential_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a cut must not zero it"):
        shaping_rewards([0.0], gamma=1.0, terminated=False)


def test_different_discounts_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one gamma"):
        check_shaping(
            shaping_gamma=0.9, return_gamma=1.0, estimator_gamma=0.9, fully_observed=True, potential_of="state"
        )


@pytest.mark.parametrize(
    ("observed", "source", "count"), [(True, "state", 0), (False, "state", 1), (False, "observation", 2)]
)
def test_conditions_nobody_can_check_are_told(observed: bool, source: str, count: int) -> None:
    found = check_shaping(
        shaping_gamma=0.9, return_gamma=0.9, estimator_gamma=0.9, fully_observed=observed, potential_of=source
    )
    assert len(found) == count


def test_an_episode_without_turns_gets_no_shaping() -> None:
    assert shaping_rewards([], gamma=0.9, terminated=True).size == 0
