"""``hermes/1``: calls stand in ``<tool_call>`` blocks, several allowed; what Qwen2.5 and Qwen3 are trained on."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kifu.errors import RenderError
from kifu.records import ToolCall
from kifu.render.contract import Parsed, ToolView
from kifu.render.dialects.base import MAX_CALLS, check_round_trip, failed, find_tool, read_object, required

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Hermes:
    """The hermes dialect."""

    name: str = "hermes/1"

    def describe(self, tools: Sequence[ToolView]) -> str:
        """Signatures as JSON lines, and the form of a call; for templates that do not do this themselves."""
        if not tools:
            return ""
        signatures = [json.dumps(schema_of(tool), ensure_ascii=False) for tool in tools]
        form = f'{OPEN}\n{{"name": NAME, "arguments": {{...}}}}\n{CLOSE}'
        return "\n".join(
            ["Tools, one JSON signature a line:", *signatures, "Call a tool by writing one block for each call:", form]
        )

    def parse(self, text: str, tools: Sequence[ToolView]) -> Parsed:
        """Read every block in order. An unclosed, misplaced or unreadable block is an error with its position."""
        calls: list[ToolCall] = []
        at = 0
        for match in re.finditer(f"{OPEN}|{CLOSE}", text):
            if match.start() < at:
                continue
            if match.group() == CLOSE:
                return failed(text, f"{CLOSE} at position {match.start()} closes nothing.")
            end = text.find(CLOSE, match.end())
            if end < 0:
                return failed(text, f"{OPEN} at position {match.start()} is not closed by {CLOSE}.")
            found = _read(text[match.end() : end], match.start(), tools)
            if isinstance(found, str):
                return failed(text, found)
            calls.append(ToolCall(name=found.name, arguments=found.arguments, id=f"call_{len(calls)}"))
            if len(calls) > MAX_CALLS:
                return failed(text, f"more than {MAX_CALLS} calls in one turn.")
            at = end + len(CLOSE)
        return Parsed(text=text, calls=tuple(calls))

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Write one block."""
        return check_round_trip(self, write(call), call=call, tools=tools)

    def show(self, results: Sequence[str]) -> str:
        """One ``<tool_response>`` block for each result."""
        return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


def write(call: ToolCall) -> str:
    """Text of a call, spelled as the models' own templates spell it."""
    try:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)
    except ValueError as cause:
        raise RenderError(f"hermes/1 cannot write a call of `{call.name}`: {cause}") from cause
    if OPEN in arguments or CLOSE in arguments:
        arguments = arguments.replace("<", "\\u003c")
    return f'{OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}\n{CLOSE}'


def schema_of(tool: ToolView) -> dict[str, object]:
    """The tool in the function schema chat templates take."""
    function = {"name": tool.name, "description": tool.description, "parameters": _plain(tool.parameters)}
    return {"type": "function", "function": function}


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=dict))


def _read(body: str, at: int, tools: Sequence[ToolView]) -> ToolCall | str:
    try:
        found = read_object(body.strip())
    except (ValueError, RecursionError) as cause:
        return f"the call at position {at} is not JSON: {cause}."
    name, arguments = found.get("name"), found.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict) or set(found) - {"name", "arguments"}:
        return f'the call at position {at} must be {{"name": NAME, "arguments": {{...}}}}, found keys {sorted(found)}.'
    tool = find_tool(name, tools)
    if isinstance(tool, str):
        return tool
    missing = [key for key in required(tool) if key not in arguments]
    return f"tool `{name}` needs argument `{missing[0]}`." if missing else ToolCall(name=name, arguments=arguments)
