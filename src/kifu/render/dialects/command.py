"""``command/1``: a turn is one plain command, such as ``pickup red key``.

A tool's template says how its call looks; without one it is the name and the arguments in order. Matching is exact
after stripping outer white space: a free string is any text on one line, other parameters are their JSON spelling.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kifu.errors import RenderError
from kifu.records import Json, ToolCall
from kifu.render.contract import Parsed, ToolView
from kifu.render.dialects.base import check_round_trip, failed, properties, required

MAX_COMMAND_CHARS = 4_096

_HOLE = re.compile(r"\{(\w+)\}")
_SHAPES = {"integer": r"-?\d{1,18}", "number": r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?", "boolean": "true|false"}


@dataclass(frozen=True, slots=True)
class Command:
    """The command dialect."""

    name: str = "command/1"

    def describe(self, tools: Sequence[ToolView]) -> str:
        """List the commands, one a line."""
        if not tools:
            return ""
        lines = [f"- {_shown(tool)}: {tool.description}" if tool.description else f"- {_shown(tool)}" for tool in tools]
        return "\n".join(["Answer with exactly one of these commands and nothing else:", *lines])

    def parse(self, text: str, tools: Sequence[ToolView]) -> Parsed:
        """Match the stripped text against every tool's template; the first that fits is the call."""
        body = text.strip()
        if len(body) <= MAX_COMMAND_CHARS:
            for tool in tools:
                match = re.fullmatch(_pattern(tool), body)
                if match is not None:
                    return Parsed(text=text, calls=(ToolCall(name=tool.name, arguments=_arguments(tool, match)),))
        shown = body if len(body) <= 80 else body[:80] + "..."
        known = "; ".join(_shown(tool) for tool in tools)
        return failed(text, f"not a command: {json.dumps(shown, ensure_ascii=False)}. Commands: {known}.")

    def format_call(self, call: ToolCall, tools: Sequence[ToolView]) -> str:
        """Fill the tool's template."""
        for tool in tools:
            if tool.name == call.name:
                return check_round_trip(self, fill(tool, dict(call.arguments)), call=call, tools=tools)
        raise RenderError(f"{self.name} cannot write a call of `{call.name}`: it is not among the tools")

    def show(self, results: Sequence[str]) -> str:
        """Results one below the other."""
        return "\n".join(results)


def template_of(tool: ToolView) -> str:
    """The tool's command template; every required parameter has its hole."""
    template = tool.command or " ".join([tool.name, *(f"{{{name}}}" for name in properties(tool))])
    holes = _HOLE.findall(template)
    unknown = set(holes) - set(properties(tool))
    missing = set(required(tool)) - set(holes)
    if unknown or missing or len(set(holes)) != len(holes):
        what = f"unknown {sorted(unknown)}" if unknown else f"missing {sorted(missing)}" if missing else "repeated"
        raise RenderError(
            f"tool `{tool.name}`: command template {template!r} has {what} parameters; "
            "write each required parameter once, in braces"
        )
    return template


def fill(tool: ToolView, arguments: dict[str, Json]) -> str:
    """Text of a command."""
    template = template_of(tool)
    missing = [name for name in _HOLE.findall(template) if name not in arguments]
    if missing:
        raise RenderError(f"tool `{tool.name}`: the command needs `{missing[0]}`")
    return _HOLE.sub(lambda match: _spell(arguments[match[1]]), template)


def _spell(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(tool: ToolView) -> str:
    """The template with its choices written out: ``pickup (red|blue) key``."""
    schemas = properties(tool)

    def hole(match: re.Match[str]) -> str:
        options = schemas[match[1]].get("enum")
        return f"({'|'.join(map(_spell, options))})" if isinstance(options, list) else f"<{match[1]}>"

    return _HOLE.sub(hole, template_of(tool))


def _pattern(tool: ToolView) -> str:
    schemas, template = properties(tool), template_of(tool)
    parts, at = [], 0
    for match in _HOLE.finditer(template):
        schema = schemas[match[1]]
        options = schema.get("enum")
        if isinstance(options, list):
            shape = "|".join(re.escape(_spell(option)) for option in sorted(options, key=lambda o: -len(_spell(o))))
        else:
            shape = _SHAPES.get(str(schema.get("type", "string")), r"\S(?:[^\n\r]*\S)?")
        parts += [re.escape(template[at : match.start()]), f"(?P<{match[1]}>{shape})"]
        at = match.end()
    return "".join([*parts, re.escape(template[at:])])


def _arguments(tool: ToolView, match: re.Match[str]) -> dict[str, Json]:
    schemas = properties(tool)
    found: dict[str, Json] = {}
    for name, text in match.groupdict().items():
        options = schemas[name].get("enum")
        if isinstance(options, list):
            found[name] = next(option for option in options if _spell(option) == text)
        else:
            kind = schemas[name].get("type", "string")
            found[name] = (
                json.loads(text) if kind in ("number", "boolean") else int(text) if kind == "integer" else text
            )
    return found
