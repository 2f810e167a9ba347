"""Relative values within a key against loops and GiGPO's printed numbers."""

from difflib import SequenceMatcher
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.credit import PopulationStd, SampleStd, Scale, Unscaled
from kifu.credit.keyed import episode_relative, merge_similar, relative_by_key
from kifu.errors import ArgumentError

RETURNS = [[9.025, 9.5, 10.0], [0.0, 0.0], [9.5, 10.0]]
STATES = [["s0", "s1", "x"], ["s0", "y"], ["s0", "s1"]]


def test_step_groups_of_the_printed_example() -> None:
    found = relative_by_key(RETURNS, STATES, scale=Unscaled())
    np.testing.assert_allclose(found[0], [2.85, -0.25, 0.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1], [-6.175, 0.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[2], [3.325, 0.25], rtol=0, atol=1e-12)


def by_hand(scale: Scale) -> list[list[float]]:
    """Value minus the mean of its key, over the key's deviation, one value at a time."""
    found = []
    for states, values in zip(STATES, RETURNS, strict=True):
        row = []
        for state, value in zip(states, values, strict=True):
            same = [v for s, x in zip(STATES, RETURNS, strict=True) for t, v in zip(s, x, strict=True) if t == state]
            mean, count = sum(same) / len(same), len(same)
            squares = sum((v - mean) ** 2 for v in same)
            if count == 1 or squares == 0:
                row.append(0.0)
            elif isinstance(scale, SampleStd):
                row.append((value - mean) / (sqrt(squares / (count - 1)) + scale.eps))
            elif isinstance(scale, PopulationStd):
                row.append((value - mean) / (sqrt(squares / count) + scale.eps))
            else:
                row.append(value - mean)
        found.append(row)
    return found


@pytest.mark.parametrize("scale", [Unscaled(), SampleStd(eps=0.01), PopulationStd(eps=1e-6)])
def test_a_value_is_compared_with_those_of_its_key_only(scale: Scale) -> None:
    for found, expected in zip(relative_by_key(RETURNS, STATES, scale=scale), by_hand(scale), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_no_member_and_no_turn_are_nothing() -> None:
    assert relative_by_key([], [], scale=Unscaled()) == ()
    assert [item.size for item in relative_by_key([[], [1.0]], [[], ["a"]], scale=SampleStd())] == [0, 1]


def test_values_and_keys_must_align() -> None:
    with pytest.raises(ArgumentError, match="member 0: 1 keys for 2 values"):
        relative_by_key([[1.0, 2.0]], [["a"]], scale=Unscaled())


@pytest.mark.parametrize(
    ("scale", "cross_steps", "expected", "digits"),
    [
        (Unscaled(), True, [2.857143, -7.142857, 2.857143], 6),
        (Unscaled(), False, [3.333333, -6.666667, 3.333333], 6),
        (SampleStd(), True, [0.5855, -1.4638, 0.5855], 4),
        (SampleStd(), False, [0.5774, -1.1547, 0.5774], 4),
    ],
)
def test_episode_advantages_as_printed(scale: Scale, cross_steps: bool, expected: list[float], digits: int) -> None:
    found = episode_relative([10, 0, 10], [3, 2, 2], scale=scale, cross_steps=cross_steps)
    assert [round(value, digits) for value in found] == expected


def test_a_single_row_is_its_own_score_and_a_single_long_member_is_nothing() -> None:
    assert episode_relative([7.0], [1], scale=Unscaled()) == (7.0,)
    assert episode_relative([7.0], [1], scale=SampleStd(eps=0.5)) == (7.0 / 1.5,)
    assert episode_relative([7.0], [3], scale=SampleStd()) == (0.0,)
    assert episode_relative([7.0], [3], scale=Unscaled(), cross_steps=False) == (7.0,)


def test_a_member_without_turns_has_no_part() -> None:
    assert episode_relative([5.0, 1.0, 3.0], [0, 1, 1], scale=Unscaled()) == (0.0, -1.0, 1.0)


def test_equal_scores_are_exactly_zero() -> None:
    assert episode_relative([0.35] * 3, [2, 1, 4], scale=SampleStd()) == (0.0, 0.0, 0.0)


def test_similar_keys_join_the_first_cluster_that_matches() -> None:
    keys = ["you see a red door", "you see a red door.", "a corridor", "you see a red door"]
    assert merge_similar(keys, threshold=0.95) == (keys[0], keys[0], keys[2], keys[0])
    assert merge_similar(keys, threshold=1.0) == tuple(keys)
    assert set(merge_similar(keys, threshold=0.0)) == {keys[0]}
    with pytest.raises(ArgumentError, match="similarity"):
        merge_similar(keys, threshold=1.5)


@given(
    keys=st.lists(st.text(alphabet="ab ", max_size=8), max_size=8),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.75, 0.95, 1.0]),
)
@settings(deadline=None)
def test_similar_is_what_the_whole_ratio_says(keys: list[str], threshold: float) -> None:
    clusters: list[str] = []
    for key, found in zip(keys, merge_similar(keys, threshold=threshold), strict=True):
        ratios = [SequenceMatcher(None, key, first).ratio() for first in clusters]
        joined = [first for first, ratio in zip(clusters, ratios, strict=True) if first == key or ratio >= threshold]
        clusters += [] if joined else [key]
        assert found == (key if key in clusters else joined[0])
