"""Intervals against scipy, printed values, and simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]

from kifu.errors import UsageError
from kifu.evaluation import clopper_pearson, clustered_wilson, paired_bootstrap, wilson


@given(trials=st.integers(1, 300), share=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_equals_scipy(trials: int, share: float, confidence: float) -> None:
    """Scipy's score interval without continuity correction."""
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")

    found = wilson(successes, trials, confidence=confidence)

    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.mean == successes / trials


@given(trials=st.integers(1, 200), share=st.floats(0, 1))
def test_clopper_pearson_equals_scipy(trials: int, share: float) -> None:
    """Scipy takes the ends from the beta distribution, here they are found by bisection of the binomial tail."""
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(0.95, method="exact")

    found = clopper_pearson(successes, trials)

    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_figures_of_the_front_page_are_wilsons() -> None:
    """11 of 64 and 64 of 64, as the README prints them."""
    before, after = wilson(11, 64), wilson(64, 64)

    assert f"{before.mean:.2f} [{before.low:.2f}, {before.high:.2f}]" == "0.17 [0.10, 0.28]"
    assert f"{after.mean:.2f} [{after.low:.2f}, {after.high:.2f}]" == "1.00 [0.94, 1.00]"


def test_one_try_per_task_needs_no_correction() -> None:
    """Independent tries: the clustered interval is the plain one."""
    won = np.array([1, 0, 1, 1, 0, 1])

    assert clustered_wilson(won, np.ones_like(won)) == wilson(4, 6)


def test_tries_that_repeat_each_other_count_as_one_per_task() -> None:
    """Every task all or nothing: 8 tries at 10 tasks tell about as much as 10 tries."""
    won = np.array([8, 8, 8, 0, 0, 8, 0, 8, 8, 0])

    found = clustered_wilson(won, np.full(10, 8))

    assert (found.low, found.high) == pytest.approx((wilson(6, 10).low, wilson(6, 10).high))


def test_the_clustered_interval_covers_the_truth_where_the_plain_one_does_not() -> None:
    """Simulated: task difficulties from a U-shaped beta with mean 1/2, 20 tasks with 8 tries; nominal coverage 0.95."""
    rng = np.random.default_rng(3)
    clustered = plain = 0
    for _ in range(400):
        won = rng.binomial(8, rng.beta(0.3, 0.3, size=20))
        interval, naive = clustered_wilson(won, np.full(20, 8)), wilson(int(won.sum()), 160)
        clustered += interval.low <= 0.5 <= interval.high
        plain += naive.low <= 0.5 <= naive.high

    assert clustered / 400 > 0.92
    assert plain / 400 < 0.75


def test_all_successes_are_not_more_certain_for_being_repeated() -> None:
    """Without spread the number of tasks counts."""
    assert clustered_wilson(np.full(5, 8), np.full(5, 8)).low == pytest.approx(wilson(5, 5).low)


def test_the_bootstrap_agrees_with_the_normal_interval_and_repeats_by_seed() -> None:
    """For 400 well-behaved numbers the percentile interval is mean +- 1.96 standard errors."""
    values = np.random.default_rng(0).normal(0.3, 1.0, size=400)
    error = values.std() / 20

    found = paired_bootstrap(values, seed=5)

    assert found == paired_bootstrap(values, seed=5)
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 4)])
def test_counts_that_cannot_be_are_refused(successes: int, trials: int) -> None:
    """No trials, more successes than trials, fewer than none."""
    with pytest.raises(UsageError, match="successes"):
        wilson(successes, trials)
    with pytest.raises(UsageError, match="successes"):
        clopper_pearson(successes, trials)
