"""Paired comparison against McNemar's exact test and against every assignment of signs."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]

from kifu.errors import UsageError
from kifu.evaluation import compare, sign_flip_test
from kifu.records import StopReason, Trajectory

Make = Callable[..., Trajectory]


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
@settings(max_examples=60)
def test_the_exact_test_counts_every_assignment_of_signs(differences: list[int]) -> None:
    """All 2^K of them, by hand."""
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in _signs(len(differences))]
    expected = sum(value >= observed for value in sums) / len(sums)

    assert sign_flip_test(np.array(differences, dtype=np.int64)) == pytest.approx(expected)


def _signs(count: int) -> list[tuple[int, ...]]:
    return list(product([-1, 1], repeat=count))


@pytest.mark.parametrize(("better", "worse"), [(5, 0), (9, 3), (4, 4), (0, 1)])
def test_with_single_tries_it_is_mcnemars_exact_test(better: int, worse: int) -> None:
    """Two-sided binomial test over the tasks that differ."""
    difference = np.array([1] * better + [-1] * worse + [0] * 20, dtype=np.int64)

    assert sign_flip_test(difference) == pytest.approx(binomtest(better, better + worse).pvalue)


def test_differences_too_fine_to_count_are_sampled_and_stay_close_to_the_exact_value() -> None:
    """Eight numbers around a million: 256 assignments of signs by hand, 100 000 drawn ones by the test."""
    difference = np.random.default_rng(2).normal(0.5e6, 1e6, size=8).astype(np.int64)
    sums = np.abs(np.array(_signs(8)) @ difference)

    assert sign_flip_test(difference, seed=1) == pytest.approx((sums >= abs(difference.sum())).mean(), abs=0.005)


def test_no_difference_is_no_evidence() -> None:
    """All equal gives p = 1."""
    assert sign_flip_test(np.zeros(12, dtype=np.int64)) == 1.0


def test_agents_are_paired_by_task_and_errors_are_left_out(make: Make) -> None:
    """Three shared tasks with rates 1/2 -> 1, 0 -> 0, 1 -> 1; one task only one side could judge."""
    first = [
        make("a", True),
        make("a", False, member=1),
        make("b", False),
        make("c", True),
        make("d", None, reason=StopReason.ENV_ERROR),
    ]
    second = [make("a", True), make("b", False), make("c", True), make("d", True)]

    found = compare(first, second)

    assert (found.tasks, found.only_first, found.only_second) == (3, 0, 1)
    assert (found.better, found.worse) == (1, 0)
    assert found.difference.mean == pytest.approx(0.5 / 3)
    assert found.to_json()["difference"]["mean"] == found.difference.mean
    assert found.p_value == 1.0


def test_evaluations_without_a_common_task_are_refused(make: Make) -> None:
    """There is nothing to pair."""
    with pytest.raises(UsageError, match="none in common"):
        compare([make("a", True)], [make("b", True)])
