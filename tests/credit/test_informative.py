"""Informative groups against the source's numbers and against enumeration of all outcomes."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.credit import (
    degenerate_probability,
    expected_groups,
    group_size_for,
    informative_probability,
    mixture_informative,
)
from kifu.errors import ArgumentError


def test_a_hard_task_of_the_source() -> None:
    assert informative_probability(0.01, size=8) == pytest.approx(0.0773, abs=5e-5)
    assert expected_groups(0.01, size=8) == pytest.approx(12.94, abs=5e-3)


def test_a_mixture_is_judged_task_by_task() -> None:
    assert mixture_informative([0.01, 0.99], size=8) == pytest.approx(0.07726, abs=5e-6)
    assert informative_probability(0.5, size=8) == pytest.approx(0.99219, abs=5e-6)


@given(st.floats(0, 1), st.integers(1, 8))
def test_probabilities_are_those_of_all_outcomes(p: float, size: int) -> None:
    mixed = sum(
        prod(p if hit else 1 - p for hit in hits)
        for hits in product([True, False], repeat=size)
        if 0 < sum(hits) < size
    )
    assert informative_probability(p, size=size) == pytest.approx(mixed, abs=1e-12)
    assert degenerate_probability(p, size=size) == pytest.approx(1 - mixed, abs=1e-12)


def test_a_very_rare_success_keeps_its_digits() -> None:
    assert informative_probability(1e-18, size=8) == pytest.approx(8e-18, rel=1e-12)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_certain_outcome_never_compares(p: float) -> None:
    assert expected_groups(p, size=8) is None
    assert group_size_for(p, informative=0.5) is None


def test_one_attempt_compares_nothing() -> None:
    assert informative_probability(0.3, size=1) == 0.0
    assert expected_groups(0.3, size=1) is None


@given(st.floats(0.005, 0.995), st.floats(0.05, 0.95))
def test_the_suggested_size_is_the_smallest_that_reaches_the_share(p: float, share: float) -> None:
    size = group_size_for(p, informative=share)
    assert size is not None
    assert 1 - p**size - (1 - p) ** size >= share - 1e-12
    assert size == 2 or 1 - p ** (size - 1) - (1 - p) ** (size - 1) < share + 1e-12


def test_weights_of_a_mixture_count() -> None:
    assert mixture_informative([0.5, 0.0], size=2, weights_B=[3, 1]) == pytest.approx(0.375)


def test_unusable_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="p must lie in"):
        informative_probability(1.5, size=8)
    with pytest.raises(ArgumentError, match="at least 1 member"):
        informative_probability(0.5, size=0)
    with pytest.raises(ArgumentError, match="at least one task"):
        mixture_informative([], size=8)
    with pytest.raises(ArgumentError, match="as many weights"):
        mixture_informative([0.5], size=8, weights_B=[0.0])
    with pytest.raises(ArgumentError, match="wanted share"):
        group_size_for(0.5, informative=1.0)
