"""Credit of whole attempts against printed numbers, plain loops and full enumeration."""

from itertools import product
from math import comb, sqrt

import pytest

from kifu.credit import PopulationStd, SampleStd, Scale, Unscaled, group_relative
from kifu.credit.outcome import (
    batch_moments,
    format_and_answer,
    maximum_likelihood,
    overlong_penalty,
    relative_by_calls,
)
from kifu.errors import ArgumentError


def test_one_success_among_four_has_the_printed_advantages() -> None:
    assert maximum_likelihood([1, 0, 0, 0]) == (3.0, -1.0, -1.0, -1.0)


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [0.5, 0.25, 0.0, 1.0], [2.0, 2.0, 1.0]])
def test_an_advantage_is_the_centred_reward_over_the_mean(rewards: list[float]) -> None:
    mean = sum(rewards) / len(rewards)
    assert maximum_likelihood(rewards) == pytest.approx([(value - mean) / mean for value in rewards])


def test_a_missing_reward_takes_no_part_and_without_success_there_is_no_ratio() -> None:
    assert maximum_likelihood([1.0, None, 0.0]) == (1.0, None, -1.0)
    assert maximum_likelihood([0.0, 0.0, None]) is None
    assert maximum_likelihood([None]) is None
    assert maximum_likelihood([0.3, 0.3]) == (0.0, 0.0)


def test_a_negative_reward_is_refused_with_its_place() -> None:
    with pytest.raises(ArgumentError, match=r"member 1 of the group has the reward -0.5"):
        maximum_likelihood([1.0, -0.5])


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_expected_gradient_is_that_of_the_truncated_log_likelihood(p: float, size: int) -> None:
    """All 2^size groups of a coin with success p: score 1/p of a success, -1/(1-p) of a failure.

    The objective is sum_{k=1}^{size-1} of -(1-p)^k / k, so its derivative is sum_{k=0}^{size-2} (1-p)^k.
    """
    expected = 0.0
    for rewards in product([0, 1], repeat=size):
        advantages = maximum_likelihood(rewards) or [0.0] * size
        chance = p ** sum(rewards) * (1 - p) ** (size - sum(rewards))
        scores = [1 / p if reward else -1 / (1 - p) for reward in rewards]
        expected += chance * sum((a or 0.0) * s for a, s in zip(advantages, scores, strict=True)) / size

    assert expected == pytest.approx(sum((1 - p) ** k for k in range(size - 1)))
    assert expected == pytest.approx(sum(comb(size - 1, j) * (-1) ** (j + 1) * p ** (j - 1) for j in range(1, size)))


def test_rows_of_calls_weigh_long_rollouts_more() -> None:
    """Rewards 1 and 0 with 3 calls and 1: the rows are 1, 1, 1, 0 with mean .75 and sample deviation .5."""
    assert relative_by_calls([1.0, 0.0], calls_G=[3, 1], scale=SampleStd(eps=0.0)) == pytest.approx([0.5, -1.5])
    assert group_relative([1.0, 0.0], scale=SampleStd(eps=0.0)) == pytest.approx([sqrt(0.5), -sqrt(0.5)])


def test_a_rollout_without_calls_or_reward_is_in_no_row() -> None:
    found = relative_by_calls([1.0, None, 7.0, 0.0], calls_G=[1, 2, 0, 1], scale=Unscaled())
    assert found == (0.5, None, None, -0.5)


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (60, 0.0), (61, -0.025), (80, -0.5), (100, -1.0), (101, -1.0), (10**6, -1.0)]
)
def test_the_overlong_penalty_falls_over_the_cache(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, limit=100, cache=40) == pytest.approx(penalty, abs=1e-15)


@pytest.mark.parametrize(("limit", "cache"), [(100, 0), (100, 101), (0, 0), (-1, -1)])
def test_a_cache_that_does_not_fit_its_limit_is_refused(limit: int, cache: int) -> None:
    with pytest.raises(ArgumentError, match=f"cache {cache} and limit {limit}"):
        overlong_penalty(1, limit=limit, cache=cache)


def test_a_reward_in_two_parts_has_the_printed_sums() -> None:
    """WebSailor: format alone .1, answer alone .9, both 1."""
    found = {(f, a): format_and_answer(format_ok=f, answer_ok=a) for f in (True, False) for a in (True, False)}
    assert found == {(True, True): 1.0, (True, False): 0.1, (False, True): 0.9, (False, False): 0.0}
    with pytest.raises(ArgumentError, match=r"1\.5"):
        format_and_answer(format_ok=True, answer_ok=True, format_share=1.5)


VALUES, COUNTS = [1.0, -2.0, 0.5, 9.0], [2, 1, 3, 0]
ROWS = [1.0, 1.0, -2.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["sample", "population", "none"])
def test_moments_of_an_update_count_copies_and_leave_out_what_is_not_trained(kind: str) -> None:
    """Against the list in which every value stands as often as it is counted."""
    mean = sum(ROWS) / 6
    squares = sum((value - mean) ** 2 for value in ROWS)
    cases: dict[str, tuple[Scale, float]] = {
        "sample": (SampleStd(eps=0.5), sqrt(squares / 5) + 0.5),
        "population": (PopulationStd(eps=0.25), sqrt(squares / 6) + 0.25),
        "none": (Unscaled(), 1.0),
    }
    scale, divisor = cases[kind]
    assert batch_moments(VALUES, counts_N=COUNTS, scale=scale) == pytest.approx((mean, divisor))


def test_equal_advantages_are_normalized_to_exactly_nothing() -> None:
    """The float sum of 0.1 over 10 copies, divided by 10, is not 0.1."""
    mean, divisor = batch_moments([0.1] * 10, counts_N=[1] * 10, scale=PopulationStd(eps=1e-8))
    assert (0.1 - mean) / divisor == 0.0


def test_moments_of_nothing_change_nothing() -> None:
    assert batch_moments([], counts_N=[], scale=SampleStd()) == (0.0, 1.0)
    assert batch_moments([5.0], counts_N=[1], scale=SampleStd(eps=0.5)) == (5.0, 0.5)


@pytest.mark.parametrize("scale", [SampleStd(eps=0.0), PopulationStd(eps=0.0)])
def test_equal_advantages_are_divided_by_one_where_nothing_is_added_to_their_deviation(scale: Scale) -> None:
    assert batch_moments([0.3] * 4, counts_N=[1, 2, 1, 1], scale=scale) == (0.3, 1.0)


@pytest.mark.parametrize("scale", [SampleStd(eps=0.0), PopulationStd(eps=0.0)])
def test_advantages_that_differ_by_rounding_alone_are_not_blown_up(scale: Scale) -> None:
    mean, divisor = batch_moments([0.1 + 0.2, 0.3], counts_N=[1, 1], scale=scale)
    assert divisor == 1.0
    assert mean == pytest.approx(0.3)
