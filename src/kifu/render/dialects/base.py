"""What a tool-call dialect is, and what all of them share."""

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NoReturn, Protocol

from kifu.errors import RenderError, nearest
from kifu.records import Json, ToolCall
from kifu.render.contract import Parsed, ToolView

MAX_CALL_CHARS = 65_536
MAX_DEPTH = 32
MAX_CALLS = 64


class Dialect(Protocol):
    """How tools are described, how a call is written, and how it is read. Part of the behaviour policy."""

    @property
    def name(self) -> str:
        """Name and version, e.g. ``command/1``; another rule of writing or reading is another version."""
        ...

    def describe(self, tools: Sequence[ToolView]) -> str:
        """System text that tells the policy its tools and how to call them; empty without tools."""
        ...

    def parse(self, text: str, tools: Sequence[ToolView]) -> Parsed:
        """Read the text of a turn. Nothing is executed; what cannot be read is an error, not an answer."""
        ...

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Write a call so that `parse` reads the same call.

        Raises:
            RenderError: the dialect cannot write this call.
        """
        ...

    def show(self, results: Sequence[str]) -> str:
        """Text of several results in call order, for templates without a tool role."""
        ...


def failed(text: str, why: str) -> Parsed:
    """A turn that could not be read."""
    return Parsed(text=text, error=why)


def join_calls(dialect: Dialect, content: str, *, calls: Sequence[ToolCall], tools: Sequence[ToolView]) -> str:
    """Text of an assistant message composed from calls; content that already holds them is left alone."""
    written = [dialect.format_call(call, tools) for call in calls]
    missing = [text for text in written if text not in content]
    return "\n".join(([content] if content else []) + missing) if missing else content


def check_round_trip(dialect: Dialect, text: str, *, call: ToolCall, tools: Sequence[ToolView]) -> str:
    """Return ``text`` if it reads back as ``call``."""
    found = dialect.parse(text, tools)
    if [(item.name, dict(item.arguments)) for item in found.calls] != [(call.name, dict(call.arguments))]:
        why = found.error or f"it reads as {[(item.name, dict(item.arguments)) for item in found.calls]}"
        raise RenderError(f"{dialect.name} cannot write {call.name}{json.dumps(dict(call.arguments))}: {why}")
    return text


def properties(tool: ToolView) -> Mapping[str, Mapping[str, Json]]:
    """Schemas of a tool's parameters by name."""
    found = tool.parameters.get("properties") or {}
    if not isinstance(found, dict) or not all(isinstance(schema, dict) for schema in found.values()):
        raise RenderError(f"tool `{tool.name}`: `properties` of its parameters must map names to schemas")
    return {name: schema for name, schema in found.items() if isinstance(schema, dict)}


def required(tool: ToolView) -> tuple[str, ...]:
    """Names of the parameters every call must give."""
    found = tool.parameters.get("required")
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def find_tool(name: str, tools: Sequence[ToolView]) -> ToolView | str:
    """The tool called ``name``, or a message that lists those there are."""
    for tool in tools:
        if tool.name == name:
            return tool
    return f"no tool `{name}`; {nearest(name, [tool.name for tool in tools])}"


def read_object(text: str) -> dict[str, Json]:
    """Parse exactly one JSON object, strictly: no repeated keys, no NaN, no infinity, bounded size and depth.

    Raises:
        ValueError: says what is wrong and at which position.
    """
    if len(text) > MAX_CALL_CHARS:
        raise ValueError(f"{len(text)} characters of JSON; at most {MAX_CALL_CHARS} are read")
    _check_depth(text)
    found = json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite)
    if not isinstance(found, dict):
        raise ValueError(f"found {type(found).__name__}, expected a JSON object")
    return found


def _check_depth(text: str) -> None:
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match.group(), 0)
        if depth > MAX_DEPTH:
            raise ValueError(f"JSON nested deeper than {MAX_DEPTH} levels at position {match.start()}")


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {json.dumps(key)} appears twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"number {text} is too large")
    return value
