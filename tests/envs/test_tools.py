"""Tools from methods, calls that are finite, and text made safe."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.envs import (
    ToolSpec,
    check_arguments,
    check_call,
    command_text,
    finite_calls,
    tool,
    tool_spec,
    with_enum,
    with_pattern,
)
from kifu.envs.text import clip, visible
from kifu.errors import RecordError, UsageError
from kifu.records import Json, ToolCall


@tool(command="paint {colour} on {wall}")
def paint(colour: Literal["red", "blue"], wall: int, coats: int = 1, note: str | None = None) -> str:
    """Paint a wall.

    Args:
        colour: of the paint.
        wall: its number.
        coats: how often.
        note: for the painter.
    """
    return ""


SPEC = tool_spec("paint", paint)


def test_a_schema_is_read_from_hints_and_docstring() -> None:
    assert SPEC.description == "Paint a wall."
    assert SPEC.parameters == {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "blue"], "description": "of the paint."},
            "wall": {"type": "integer", "description": "its number."},
            "coats": {"type": "integer", "description": "how often."},
            "note": {"type": "string", "description": "for the painter."},
        },
        "required": ["colour", "wall"],
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"colour": "red", "wall": 1}, None),
        ({"colour": "red", "wall": 1, "coats": 2, "note": "x"}, None),
        ({"colour": "green", "wall": 1}, "expected one of 'red', 'blue'"),
        ({"colour": "red", "wall": "1"}, "found '1', expected integer"),
        ({"colour": "red", "wall": True}, "found True, expected integer"),
        ({"colour": "red"}, "needs argument `wall`"),
        ({"color": "red", "wall": 1}, "did you mean `colour`"),
    ],
)
def test_arguments_are_checked_without_coercion(arguments: dict[str, Json], words: str | None) -> None:
    if words is None:
        check_arguments(SPEC, arguments)
        return
    with pytest.raises(UsageError, match=words):
        check_arguments(SPEC, arguments)


def test_finite_calls_are_the_product_of_the_enums_in_order() -> None:
    small = ToolSpec(name="go", description="", parameters={"type": "object", "properties": {"way": {"enum": ["n"]}}})
    both = with_enum(with_enum(_two(), "a", [1, 2]), "b", ["x", "y"])
    calls = finite_calls([both, small])
    assert calls is not None
    assert [tuple(call.arguments.values()) for call in calls] == [(1, "x"), (1, "y"), (2, "x"), (2, "y"), ("n",)]
    assert finite_calls([_two()]) is None
    assert finite_calls([_two(), small], allowed=["go"]) is not None
    assert finite_calls([]) == ()


def _two() -> ToolSpec:
    properties: dict[str, Json] = {"a": {"type": "integer"}, "b": {"type": "string"}}
    return ToolSpec(name="two", description="", parameters={"type": "object", "properties": properties})


def test_an_enum_for_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter `c`"):
        with_enum(_two(), "c", [1])


@pytest.mark.parametrize(("text", "fits"), [("ab", True), ("a", True), ("abc", False), ("a\n", False), ("", False)])
def test_a_text_keeps_to_its_pattern_from_end_to_end(text: str, fits: bool) -> None:
    spec = with_pattern(_two(), "b", "^[ab]{1,2}$")
    call = ToolCall(name="two", arguments={"a": 1, "b": text})
    if fits:
        assert check_call([spec], call) is spec
    else:
        with pytest.raises(UsageError, match="expected a text of the pattern"):
            check_call([spec], call)


def test_commands_follow_the_template_or_name_and_arguments() -> None:
    assert command_text(SPEC, {"colour": "red", "wall": 3}) == "paint red on 3"
    assert command_text(_two(), {"a": 1, "b": "x"}) == "two 1 x"


def test_a_tool_without_sound_parameters_cannot_be_built() -> None:
    with pytest.raises(RecordError, match="must be an identifier"):
        ToolSpec(name="two words", description="", parameters={})
    with pytest.raises(RecordError, match="type object"):
        ToolSpec(name="x", description="", parameters={"type": "array"})


@given(st.text(), st.integers(min_value=40, max_value=200))
def test_a_cut_text_fits_and_accounts_for_every_byte(text: str, limit: int) -> None:
    text = visible(text)
    kept, cut = clip(text, limit_bytes=limit)
    whole = len(text.encode())
    assert len(kept.encode()) <= max(limit, 0) or cut == 0
    if cut:
        body, _, marker = kept.rpartition("\n")
        assert marker == f"[cut: {cut} bytes]"
        assert text.startswith(body)
        assert len(body.encode()) + cut == whole
    else:
        assert kept == text
        assert whole <= limit


@given(st.binary())
def test_any_bytes_become_valid_unicode(data: bytes) -> None:
    assert visible(data).encode().decode() == visible(data)
    assert len(visible(data)) >= len(data.decode("utf-8", "ignore"))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_valid_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
