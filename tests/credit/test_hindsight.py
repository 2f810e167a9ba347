"""Hindsight ratios and values against HCAPO's printed numbers."""

from math import exp

import numpy as np
import pytest

from kifu.credit.hindsight import hindsight_ratios, hindsight_values
from kifu.errors import ArgumentError


def test_ratios_and_values_as_printed() -> None:
    rho = hindsight_ratios([-1.0, -0.5, -2.0], temperature=5.0, low=0.8, high=1.2)
    np.testing.assert_allclose(rho, [1.026026, 1.133934, 0.840039], rtol=0, atol=5e-7)
    q = hindsight_values(rho, outcome=1.0, gamma=0.95)
    np.testing.assert_allclose(q, [0.925989, 1.077238, 0.840039], rtol=0, atol=5e-7)
    np.testing.assert_allclose([exp(x / 5) for x in (-1, -0.5, -2)], [0.818731, 0.904837, 0.670320], rtol=0, atol=5e-7)


def test_ratios_are_clipped_on_both_sides() -> None:
    found = hindsight_ratios([0.0, -40.0], temperature=1.0, low=0.8, high=1.2)
    assert found.tolist() == [1.2, 0.8]


def test_equal_turns_have_ratio_1_and_no_turn_has_none() -> None:
    assert hindsight_ratios([-3.0] * 4, temperature=5.0, low=0.8, high=1.2).tolist() == pytest.approx([1.0] * 4)
    assert hindsight_ratios([], temperature=5.0, low=0.8, high=1.2).size == 0
    assert hindsight_values([], outcome=-1.0, gamma=0.9).size == 0


def test_a_negative_outcome_gives_negative_values_discounted_from_the_end() -> None:
    assert hindsight_values([1.0, 1.0, 1.0], outcome=-2.0, gamma=0.5).tolist() == [-0.5, -1.0, -2.0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at most 0 nats"):
        hindsight_ratios([0.1], temperature=5.0, low=0.8, high=1.2)
    with pytest.raises(ArgumentError, match="temperature"):
        hindsight_ratios([-1.0], temperature=0.0, low=0.8, high=1.2)
    with pytest.raises(ArgumentError, match="clipped"):
        hindsight_ratios([-1.0], temperature=1.0, low=1.2, high=0.8)


def test_ratios_of_turns_that_are_all_unlikely_do_not_underflow() -> None:
    """exp(-800) is 0 in float64; only the difference of 2 nats matters."""
    pi_K = np.exp([0.0, -2.0])
    found_K = hindsight_ratios([-400.0, -401.0], temperature=0.5, low=0.0, high=10.0)
    np.testing.assert_allclose(found_K, pi_K / pi_K.mean())
