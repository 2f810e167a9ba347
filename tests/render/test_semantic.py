"""Probabilities of semantic actions against sums by hand and against brute force."""

from collections.abc import Mapping
from itertools import product
from math import exp, log

import pytest

from kifu.errors import RenderError
from kifu.records import ToolCall
from kifu.render import Parsed, action_key, semantic_probabilities, tokenizations

SPELLINGS: Mapping[int, str] = {0: "a", 1: "b", 2: "ab", 3: " ", 4: "$"}
"""Id 4 ends a turn."""


def probability(path: tuple[int, ...]) -> float:
    """A policy without memory: 0.1, 0.2, 0.3, 0.15, 0.25."""
    result = 1.0
    for token in path:
        result *= (0.1, 0.2, 0.3, 0.15, 0.25)[token]
    return result


def parse(path: tuple[int, ...]) -> Parsed:
    text = "".join(SPELLINGS[token] for token in path).removesuffix("$").strip()
    return Parsed(text=text, calls=(ToolCall(name=text),)) if text in ("ab", "b") else Parsed(text=text, error="?")


def test_texts_and_tokenizations_of_one_call_are_added_up() -> None:
    paths = [(0, 1, 4), (2, 4), (3, 2, 4), (1, 4), (0, 4)]

    found = semantic_probabilities(paths, parse, lambda path: log(probability(path)))

    by_name = {"ab": 0.1 * 0.2 * 0.25 + 0.3 * 0.25 + 0.15 * 0.3 * 0.25, "b": 0.2 * 0.25}
    assert {key: exp(value) for key, value in found.logprobs.items()} == pytest.approx(
        {action_key([ToolCall(name=name)]): value for name, value in by_name.items()}
    )
    assert found.unread == pytest.approx(0.1 * 0.25)
    assert found.unlisted == pytest.approx(1.0 - sum(by_name.values()) - 0.025)


def test_a_repeated_path_is_counted_once() -> None:
    once = semantic_probabilities([(1, 4)], parse, lambda path: log(probability(path)))
    twice = semantic_probabilities([(1, 4), (1, 4)], parse, lambda path: log(probability(path)))
    assert once == twice


def test_a_path_that_begins_another_is_refused() -> None:
    with pytest.raises(RenderError, match="beginning"):
        semantic_probabilities([(1,), (1, 4)], parse, lambda path: log(probability(path)))


def test_probabilities_above_one_are_refused() -> None:
    with pytest.raises(RenderError, match="whole turn"):
        semantic_probabilities([(1, 4), (2, 4)], parse, lambda path: 0.0)


@pytest.mark.parametrize("text", ["ab", "abab", "aab b", "c"])
def test_tokenizations_are_those_brute_force_finds(text: str) -> None:
    brute = {
        path
        for size in range(1, len(text) + 1)
        for path in product(SPELLINGS, repeat=size)
        if "".join(SPELLINGS[token] for token in path) == text
    }
    assert set(tokenizations(text, SPELLINGS)) == brute


def test_too_many_tokenizations_are_refused() -> None:
    with pytest.raises(RenderError, match="small cases"):
        tokenizations("ab" * 40, SPELLINGS)


def test_the_key_of_an_action_ignores_the_order_of_its_arguments() -> None:
    one = action_key([ToolCall(name="f", arguments={"a": 1, "b": 2})])
    assert one == action_key([ToolCall(name="f", arguments={"b": 2, "a": 1})])
    assert one != action_key([ToolCall(name="f", arguments={"a": 1, "b": 3})])
