"""The softmax policy against the source's numbers, its identities, and what it refuses."""

from math import inf, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.lab import entropy_slope, policy_entropy, softmax_with_temperature

LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=8)
TEMPERATURE = st.floats(0.05, 50)


@pytest.mark.parametrize(("temperature", "entropy"), [(0.5, 0.455429), (1.0, 0.947537), (2.0, 1.245050)])
def test_entropies_of_the_source_example(temperature: float, entropy: float) -> None:
    """Logits 2, 1, 0, -1."""
    assert policy_entropy([2, 1, 0, -1], temperature) == pytest.approx(entropy, abs=5e-7)


def test_probabilities_of_the_source_example() -> None:
    """Temperature 1."""
    found = softmax_with_temperature([2, 1, 0, -1], 1.0)
    np.testing.assert_allclose(found, [0.643914, 0.236883, 0.087144, 0.032059], rtol=0, atol=5e-7)


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_the_smallest_temperatures_choose_the_best_action(temperature: float) -> None:
    """Dividing first would give inf - inf."""
    assert softmax_with_temperature([2, 1, 0, -1], temperature).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert policy_entropy([2, 1, 0, -1], temperature) == 0.0


@pytest.mark.parametrize("logits", [[1000.0, 999.0, -1000.0], [1e308, -1e308], [-1e308, -1e308]])
def test_huge_logits_give_finite_probabilities(logits: list[float]) -> None:
    """They still sum to 1."""
    found = softmax_with_temperature(logits, 1.0)
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


@given(LOGITS, TEMPERATURE)
def test_entropy_lies_between_zero_and_the_logarithm_of_the_number_of_actions(
    logits: list[float], temperature: float
) -> None:
    """0 <= H <= ln K."""
    assert 0.0 <= policy_entropy(logits, temperature) <= log(len(logits)) + 1e-12


@given(LOGITS, TEMPERATURE)
def test_entropy_is_log_z_minus_mean_logit_over_temperature(logits: list[float], temperature: float) -> None:
    """H = log Z - E[z] / T, computed with the largest logit taken out."""
    z = (np.array(logits) - max(logits)) / temperature
    p = softmax_with_temperature(logits, temperature)
    expected = log(np.exp(z).sum()) - float(np.sum(p * z))
    assert policy_entropy(logits, temperature) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0.4, 5))
def test_the_slope_of_the_entropy_is_its_finite_difference(logits: list[float], temperature: float) -> None:
    """dH/dT = Var(z) / T^3 >= 0."""
    step = 1e-5 * temperature
    rise = policy_entropy(logits, temperature + step) - policy_entropy(logits, temperature - step)
    slope = entropy_slope(logits, temperature)
    assert slope >= 0.0
    assert slope == pytest.approx(rise / (2 * step), rel=1e-4, abs=1e-7)


@given(LOGITS, TEMPERATURE, st.floats(-100, 100))
def test_a_constant_added_to_all_logits_changes_nothing(logits: list[float], temperature: float, shift: float) -> None:
    """Up to the rounding of the shifted logits."""
    moved = softmax_with_temperature([z + shift for z in logits], temperature)
    np.testing.assert_allclose(moved, softmax_with_temperature(logits, temperature), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.0, -1.0, nan, inf])
def test_a_temperature_that_is_not_finite_and_positive_is_refused(temperature: float) -> None:
    """The error is a ValueError and says what was found."""
    with pytest.raises(ValueError, match=f"temperature must be finite and > 0, found {temperature}"):
        softmax_with_temperature([1.0], temperature)


@pytest.mark.parametrize("logits", [[], [[1.0, 2.0]], 3.0])
def test_logits_that_are_not_a_list_of_numbers_are_refused(logits: list[float]) -> None:
    """Empty, two axes, none."""
    with pytest.raises(ValueError, match="non-empty list of numbers along one axis"):
        policy_entropy(logits, 1.0)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    """An excluded action is left out, not given -inf."""
    with pytest.raises(ValueError, match="logits must be finite"):
        softmax_with_temperature([0.0, bad], 1.0)
