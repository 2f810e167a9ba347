"""``json/1``: a turn is one JSON object, ``{"tool": NAME, "<parameter>": value, ...}``.

The long form ``{"tool": NAME, "arguments": {...}}`` is read as well, and is written where a parameter is itself called
``tool`` or ``arguments``. Text without an opening brace is an answer without a call.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kifu.errors import RenderError
from kifu.records import Json, ToolCall
from kifu.render.contract import Parsed, ToolView
from kifu.render.dialects.base import check_round_trip, failed, find_tool, properties, read_object, required

_RESERVED = {"tool", "arguments"}


@dataclass(frozen=True, slots=True)
class JsonCall:
    """The json dialect."""

    name: str = "json/1"

    def describe(self, tools: Sequence[ToolView]) -> str:
        """Show the form of a call of every tool."""
        if not tools:
            return ""
        lines = []
        for tool in tools:
            form = ", ".join([f'"tool": {json.dumps(tool.name)}', *(_hole(tool, name) for name in properties(tool))])
            lines.append(f"- {{{form}}}" + (f": {tool.description}" if tool.description else ""))
        return "\n".join(["Answer with exactly one JSON object that calls a tool and nothing else:", *lines])

    def parse(self, text: str, tools: Sequence[ToolView]) -> Parsed:
        """Read one object; anything besides it is an error once there is a brace."""
        body = text.strip()
        if "{" not in body:
            return Parsed(text=text)
        if not body.startswith("{"):
            at = text.index("{")
            return failed(text, f"text before the JSON object, which begins at position {at}. Write only the object.")
        try:
            found = read_object(body)
        except (ValueError, RecursionError) as cause:
            return failed(text, f"not a JSON call: {cause}.")
        return _read(text, found, tools)

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Write the short form, or the long one where a parameter's name would be mistaken."""
        return check_round_trip(self, write(call), call=call, tools=tools)

    def show(self, results: Sequence[str]) -> str:
        """Results one below the other."""
        return "\n".join(results)


def write(call: ToolCall) -> str:
    """Text of a call."""
    arguments = dict(call.arguments)
    body = {"arguments": arguments} if _RESERVED & set(arguments) else arguments
    try:
        return json.dumps({"tool": call.name, **body}, ensure_ascii=False, allow_nan=False)
    except ValueError as cause:
        raise RenderError(f"json/1 cannot write a call of `{call.name}`: {cause}") from cause


def _read(text: str, found: dict[str, Json], tools: Sequence[ToolView]) -> Parsed:
    name = found.pop("tool", None)
    if not isinstance(name, str):
        return failed(text, 'the object must name its tool: {"tool": NAME, ...}.')
    tool = find_tool(name, tools)
    if isinstance(tool, str):
        return failed(text, tool)
    arguments = found
    if isinstance(found.get("arguments"), dict) and ("arguments" not in properties(tool) or len(found) == 1):
        if len(found) != 1:
            others = sorted(set(found) - {"arguments"})
            return failed(text, f'`{others[0]}` stands beside "arguments"; put every argument inside it.')
        inner = found["arguments"]
        arguments = inner if isinstance(inner, dict) else {}
    missing = [key for key in required(tool) if key not in arguments]
    if missing:
        return failed(text, f"tool `{name}` needs argument `{missing[0]}`.")
    return Parsed(text=text, calls=(ToolCall(name=name, arguments=arguments),))


def _hole(tool: ToolView, name: str) -> str:
    schema = properties(tool)[name]
    options = schema.get("enum")
    if isinstance(options, list):
        return f"{json.dumps(name)}: {' or '.join(json.dumps(option, ensure_ascii=False) for option in options)}"
    return f"{json.dumps(name)}: <{schema.get('type', 'string')}>"
