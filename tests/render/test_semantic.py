"""Listing what means one call, against brute force, and its probability against a sum by hand."""

from collections.abc import Mapping
from itertools import product
from math import log

import pytest

from kifu.credit import semantic_distribution
from kifu.errors import RenderError
from kifu.records import ToolCall
from kifu.render import Command, ToolView, action_key, tokenizations

SPELLINGS: Mapping[int, str] = {0: "a", 1: "b", 2: "ab", 3: " "}
SHARES = (0.1, 0.2, 0.3, 0.15)
"""Probability of each id; what is missing to 1 ends the turn."""
END = 1.0 - sum(SHARES)


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


def test_the_probability_of_a_call_adds_up_its_texts_and_their_tokenizations() -> None:
    """``ab``, `` ab`` and ``ab `` are one command, because outer white space does not count."""
    tools = [ToolView(name="ab", description="", parameters={"type": "object"})]

    def parse(path: tuple[int, ...]) -> str | None:
        calls = Command().parse("".join(SPELLINGS[token] for token in path), tools).calls
        return action_key(calls) if calls else None

    paths = [path for text in ("ab", " ab", "ab ", "b") for path in tokenizations(text, SPELLINGS)]
    nats = {path: sum(log(SHARES[token]) for token in path) + log(END) for path in paths}

    found = semantic_distribution(nats, parse)

    ab = (0.1 * 0.2 + 0.3) * END
    assert found.actions == {action_key([ToolCall(name="ab")]): pytest.approx(ab + 2 * 0.15 * ab)}
    assert found.unparsed == pytest.approx(0.2 * END)
