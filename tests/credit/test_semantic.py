"""Semantic actions: several strings, one call; a language small enough to add up by hand."""

from math import log

import pytest

from kifu.credit import enumerate_strings, semantic_distribution
from kifu.errors import ArgumentError

GO, SPACE, JUNK, END = 0, 1, 2, 3


def next_logprobs(prefix: tuple[int, ...]) -> dict[int, float]:
    """First: go .6, a space .3, junk .1. After a space: go. After go or junk: the end."""
    if not prefix:
        return {GO: log(0.6), SPACE: log(0.3), JUNK: log(0.1)}
    return {GO: 0.0} if prefix[-1] == SPACE else {END: 0.0}


def parse(string: tuple[int, ...]) -> str | None:
    return "go" if GO in string else None


def test_strings_with_one_meaning_add_up() -> None:
    strings, unfinished = enumerate_strings(next_logprobs, end=END, max_tokens=3)
    found = semantic_distribution(strings, parse, unfinished=unfinished)
    assert len(strings) == 3
    assert found.actions["go"] == pytest.approx(0.9)
    assert found.unparsed == pytest.approx(0.1)
    assert found.unfinished == 0.0


def test_mass_cut_by_the_length_limit_is_told_apart_from_junk() -> None:
    strings, unfinished = enumerate_strings(next_logprobs, end=END, max_tokens=2)
    found = semantic_distribution(strings, parse, unfinished=unfinished)
    assert found.actions["go"] == pytest.approx(0.6)
    assert found.unfinished == pytest.approx(0.3)


def test_strings_that_overlap_are_refused() -> None:
    with pytest.raises(ArgumentError, match="mass of"):
        semantic_distribution({(GO,): 0.0, (GO, END): 0.0}, parse)
