"""Grammars against enumeration by hand."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import RenderError
from kifu.render import ChatTokenizer, TokenTrie, ToolView, call_texts, dialect

FINITE = (
    ToolView(
        name="pickup",
        description="",
        parameters={
            "type": "object",
            "properties": {"color": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["color"],
        },
        command="pickup {color} key",
    ),
    ToolView(name="open", description="", parameters={"type": "object", "properties": {}}, command="open door"),
    ToolView(name="finish", description="", parameters={"type": "object", "properties": {}}),
)


@pytest.fixture(scope="module")
def toy(toy_tokenizer: str) -> ChatTokenizer:
    return ChatTokenizer(source=toy_tokenizer, config={"eos_token": "<|im_end|>"})


def walk(grammar: TokenTrie) -> set[tuple[int, ...]]:
    """Every complete sequence, by asking for the allowed ids only."""
    complete: set[tuple[int, ...]] = set()
    open_: list[tuple[int, ...]] = [()]
    while open_:
        prefix = open_.pop()
        allowed = grammar.allowed(prefix)
        assert allowed is not None
        assert all(one < other for one, other in pairwise(allowed.tolist()))
        open_ += [(*prefix, token) for token in allowed.tolist()]
        if not allowed.size:
            complete.add(prefix)
    return complete


def test_the_command_grammar_lists_every_call() -> None:
    assert call_texts(dialect("command"), FINITE) == ["finish", "open door", "pickup blue key", "pickup red key"]


def test_the_json_grammar_lists_every_call() -> None:
    assert call_texts(dialect("json"), FINITE[:2]) == [
        '{"tool": "open"}',
        '{"tool": "pickup", "color": "blue"}',
        '{"tool": "pickup", "color": "red"}',
    ]


def test_an_optional_parameter_may_be_left_out() -> None:
    flag = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": []}
    tool = ToolView(name="look", description="", parameters=dict(flag))  # type: ignore[arg-type]
    assert call_texts(dialect("json"), [tool]) == [
        '{"tool": "look", "far": false}',
        '{"tool": "look", "far": true}',
        '{"tool": "look"}',
    ]


def test_the_complete_sequences_are_the_texts_and_an_end_token(toy: ChatTokenizer) -> None:
    end = toy.stop_ids[0]
    texts = call_texts(dialect("command"), FINITE)
    found = walk(TokenTrie.build(texts, toy, end_id=end))
    assert {toy.decode(sequence) for sequence in found} == {f"{text}<|im_end|>" for text in texts}
    assert found == {(*toy.encode_whole(text).tolist(), end) for text in texts}


@given(sequences=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_trie_generates_exactly_its_sequences(sequences: Sequence[Sequence[int]]) -> None:
    ended = [(*sequence, 9) for sequence in sequences]
    assert walk(TokenTrie.of(ended)) == set(ended)


def test_the_digest_names_the_set_and_not_its_order() -> None:
    assert TokenTrie.of([[1, 2], [3]]).digest == TokenTrie.of([[3], [1, 2], [3]]).digest
    assert TokenTrie.of([[1, 2], [3]]).digest != TokenTrie.of([[1, 2], [4]]).digest


def test_the_answer_of_a_grammar_cannot_be_changed_by_its_reader() -> None:
    allowed = TokenTrie.of([[1], [2]]).allowed(())
    assert allowed is not None
    with pytest.raises(ValueError, match="read-only"):
        allowed[0] = 7
    assert np.array_equal(allowed, [1, 2])


def test_a_prefix_outside_the_grammar_is_refused() -> None:
    with pytest.raises(RenderError, match="begins with"):
        TokenTrie.of([[1, 2]]).allowed((5,))


def test_a_sequence_that_begins_another_is_refused() -> None:
    with pytest.raises(RenderError, match="beginning of another"):
        TokenTrie.of([[1], [1, 2]])


def test_a_parameter_without_a_finite_set_is_refused() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    tool = ToolView(name="search", description="", parameters=dict(schema))  # type: ignore[arg-type]
    with pytest.raises(RenderError, match="parameter `q`: any string is possible"):
        call_texts(dialect("json"), [tool])


def test_too_many_calls_are_counted_and_refused_before_they_are_made() -> None:
    digit = {"type": "integer", "enum": list(range(10))}
    names = [f"d{at}" for at in range(9)]
    schema = {"type": "object", "properties": dict.fromkeys(names, digit), "required": names}
    tool = ToolView(name="dial", description="", parameters=dict(schema))  # type: ignore[arg-type]
    with pytest.raises(RenderError, match="1000000000 different calls"):
        call_texts(dialect("json"), [tool])


def test_no_tool_is_no_grammar() -> None:
    with pytest.raises(RenderError, match="at least one tool"):
        call_texts(dialect("command"), [])
