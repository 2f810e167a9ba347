"""The json dialect."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.records import Json, ToolCall
from kifu.render import JsonCall, ToolView

VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
GET = ToolView(
    name="get",
    description="Look up.",
    parameters={"type": "object", "properties": {"arg": {"type": "string"}}, "required": ["arg"]},
)


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "get", "arg": "pens"}',
        ' {"arg":"pens","tool":"get"}\n',
        '{"tool": "get", "arguments": {"arg": "pens"}}',
    ],
)
def test_both_forms_are_read(text: str) -> None:
    parsed = JsonCall().parse(text, [GET])
    assert [(call.name, dict(call.arguments)) for call in parsed.calls] == [("get", {"arg": "pens"})]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"tool": "get", "arg": "pens"', "not a JSON call"),
        ('{"tool": "get"} {"tool": "get"}', "Extra data"),
        ('Sure: {"tool": "get", "arg": "pens"}', "begins at position 6"),
        ('{"tool": "get", "tool": "put", "arg": 1}', 'key "tool" appears twice'),
        ('{"tool": "get", "arg": NaN}', "NaN is not JSON"),
        ('{"tool": "get", "arg": 1e999}', "too large"),
        ('{"tool": "get", "arg": ' + "[" * 40 + "]" * 40 + "}", "deeper than 32"),
        ('{"tool": "get", "arg": "' + "a" * 70_000 + '"}', "characters of JSON"),
        ('{"tool": "get", "arg": ' + "9" * 5000 + "}", "not a JSON call"),
        ('{"tool": "got", "arg": "pens"}', "did you mean `get`"),
        ('{"tool": 3}', "must name its tool"),
        ('{"name": "get"}', "must name its tool"),
        ('{"tool": "get"}', "needs argument `arg`"),
        ('{"tool": "get", "arguments": {"arg": 1}, "arg": 2}', "beside"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_no_answer(text: str, why: str) -> None:
    parsed = JsonCall().parse(text, [GET])
    assert parsed.calls == ()
    assert parsed.error is not None
    assert why in parsed.error


def test_text_without_a_brace_is_an_answer_without_a_call() -> None:
    parsed = JsonCall().parse("The answer is 42.", [GET])
    assert (parsed.calls, parsed.error) == ((), None)


@given(arguments=st.dictionaries(st.sampled_from(["arg", "tool", "arguments", "é"]), VALUES, max_size=4))
def test_a_written_call_reads_as_the_same_call(arguments: dict[str, Json]) -> None:
    names: Json = {key: {"type": "string"} for key in ("arg", "tool", "arguments", "é")}
    tools: Sequence[ToolView] = [
        ToolView(name="get", description="", parameters={"type": "object", "properties": names})
    ]
    text = JsonCall().format_call(ToolCall(name="get", arguments=arguments), tools)
    (found,) = JsonCall().parse(text, tools).calls
    assert json.dumps(dict(found.arguments)) == json.dumps(arguments)


def test_tools_are_described_by_the_form_of_their_calls() -> None:
    assert '{"tool": "get", "arg": <string>}: Look up.' in JsonCall().describe([GET])
    assert JsonCall().describe([]) == ""
