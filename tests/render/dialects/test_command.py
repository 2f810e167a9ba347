"""The command dialect."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import RenderError, UsageError
from kifu.records import Json, ToolCall
from kifu.render import Command, ToolView, dialect

WORD = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1).map(str.strip).filter(bool)


def tool(command: str | None = None, **parameters: Json) -> ToolView:
    return ToolView(
        name="do",
        description="Do it.",
        parameters={"type": "object", "properties": dict(parameters), "required": list(parameters)},
        command=command,
    )


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("pickup red key", "pickup", {"color": "red"}),
        ("  pickup blue key\n", "pickup", {"color": "blue"}),
        ("inspect old  box", "inspect", {"object": "old  box"}),
        ("open door", "open", {}),
        ("finish", "finish", {}),
    ],
)
def test_a_command_is_read(key_tools: Sequence[ToolView], text: str, name: str, arguments: dict[str, str]) -> None:
    (call,) = Command().parse(text, key_tools).calls
    assert (call.name, dict(call.arguments)) == (name, arguments)


@pytest.mark.parametrize(
    "text",
    ["", "pickup green key", "Finish", "finish.", "I finish", "finish\nfinish", "pickup red key now", "x" * 9999],
)
def test_anything_else_is_an_error_that_lists_the_commands(key_tools: Sequence[ToolView], text: str) -> None:
    parsed = Command().parse(text, key_tools)
    assert parsed.calls == ()
    assert parsed.error is not None
    assert "pickup (red|blue) key" in parsed.error
    assert len(parsed.error) < 400


@given(value=WORD)
def test_a_written_command_reads_as_the_same_call(value: str) -> None:
    tools = [tool("use {what} now", what={"type": "string"})]
    call = ToolCall(name="do", arguments={"what": value})
    assert Command().parse(Command().format_call(call, tools), tools).calls == (call,)


@given(count=st.integers(-(10**17), 10**17), share=st.floats(allow_nan=False, allow_infinity=False), flag=st.booleans())
def test_numbers_and_flags_keep_their_type(count: int, share: float, flag: bool) -> None:
    kinds: dict[str, Json] = {"n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}}
    tools = [tool(None, **kinds)]
    call = ToolCall(name="do", arguments={"n": count, "x": share, "b": flag})
    try:
        text = Command().format_call(call, tools)
    except RenderError:
        assert abs(share) > 1e99 or 0 < abs(share) < 1e-99
        return
    (found,) = Command().parse(text, tools).calls
    assert dict(found.arguments) == dict(call.arguments)
    assert [type(value) for value in found.arguments.values()] == [int, float, bool]


@pytest.mark.parametrize("value", [" a", "a\nb", ""])
def test_a_value_that_would_not_come_back_is_refused(value: str) -> None:
    with pytest.raises(RenderError, match="cannot write"):
        Command().format_call(ToolCall(name="do", arguments={"w": value}), [tool("use {w}", w={"type": "string"})])


@pytest.mark.parametrize("command", ["use", "use {other}", "use {w} {w}"])
def test_a_template_that_does_not_fit_its_parameters_is_refused(command: str) -> None:
    with pytest.raises(RenderError, match="each required parameter once"):
        Command().describe([tool(command, w={"type": "string"})])


def test_the_longer_of_two_choices_is_not_mistaken_for_the_shorter() -> None:
    tools = [tool("go {w}", w={"type": "string", "enum": ["north", "north east"]})]
    (call,) = Command().parse("go north east", tools).calls
    assert call.arguments["w"] == "north east"


def test_a_dialect_is_found_by_name_and_version() -> None:
    assert dialect("command") == dialect("command/1") == Command()
    for name in ("commands", "command/2"):
        with pytest.raises(UsageError, match="command/1"):
            dialect(name)
