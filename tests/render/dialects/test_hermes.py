"""The hermes dialect."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.records import Json, ToolCall
from kifu.render import Hermes, ToolView

VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("</tool_call>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TOOLS = [ToolView(name=name, description="", parameters={"type": "object"}) for name in ("get", "put")]


def block(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def test_several_calls_are_read_in_order_between_other_text() -> None:
    text = f"Two.\n{block(json.dumps({'name': 'put', 'arguments': {'x': 1}}))} and {block(json.dumps({'name': 'get'}))}"
    parsed = Hermes().parse(text, TOOLS)
    assert [(call.name, dict(call.arguments), call.id) for call in parsed.calls] == [
        ("put", {"x": 1}, "call_0"),
        ("get", {}, "call_1"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('a <tool_call>{"name": "get"}', "position 2 is not closed"),
        ('<tool_call>{"name": "get"}</tool_call></tool_call>', "position 38 closes nothing"),
        (block('{"name": "get", }'), "position 0 is not JSON"),
        (block('{"name": "get", "name": "put"}'), "appears twice"),
        (block('["get"]'), "expected a JSON object"),
        (block('{"name": "get", "arguments": "x"}'), "must be"),
        (block('{"name": "get", "more": 1}'), "must be"),
        (block('{"name": "gut"}'), "no tool `gut`"),
        (block('{"name": "get"}') * 65, "more than 64 calls"),
        (block('{"name": "get"}') + "<tool_call>", "is not closed"),
    ],
)
def test_a_broken_block_is_an_error_and_calls_nothing(text: str, why: str) -> None:
    parsed = Hermes().parse(text, TOOLS)
    assert parsed.calls == ()
    assert parsed.error is not None
    assert why in parsed.error


def test_text_without_a_block_is_an_answer_without_a_call() -> None:
    parsed = Hermes().parse("The answer is 42.", TOOLS)
    assert (parsed.calls, parsed.error) == ((), None)


@given(arguments=st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_written_call_reads_as_the_same_call(arguments: dict[str, Json]) -> None:
    text = Hermes().format_call(ToolCall(name="get", arguments=arguments), TOOLS)
    (found,) = Hermes().parse(text, TOOLS).calls
    assert (found.name, dict(found.arguments)) == ("get", arguments)


def test_results_keep_the_order_of_the_calls() -> None:
    assert Hermes().show(["one", "two"]) == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )
