"""Rewriting a sampled call before it is executed. The record keeps both, with the id and version of who rewrote."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kifu.envs import ToolSpec
from kifu.records import Json, ToolCall


class Repair(Protocol):
    """A deterministic rule between what was sampled and what is executed."""

    @property
    def id(self) -> str:
        """Name and version; stands in the record of every call it changed."""
        ...

    def __call__(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
        """The calls to execute."""
        ...


class EnumArguments:
    """Puts an argument right that is one of a tool's listed values but for case and spaces around it.

    It changes nothing where two listed values are alike in this, and nothing else of a call.
    """

    id = "enum_arguments/1"

    def __call__(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
        """The calls to execute."""
        listed = {tool.name: _listed(tool) for tool in tools}
        return tuple(_repaired(call, listed.get(call.name, {})) for call in calls)


REPAIRS: Mapping[str, type[EnumArguments]] = {EnumArguments.id: EnumArguments}


def _listed(tool: ToolSpec) -> dict[str, list[str]]:
    """The texts each parameter may be."""
    properties = tool.parameters.get("properties")
    found: dict[str, list[str]] = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(options, Sequence) and not isinstance(options, str):
            found[name] = [option for option in options if isinstance(option, str)]
    return found


def _repaired(call: ToolCall, listed: Mapping[str, Sequence[str]]) -> ToolCall:
    arguments = {name: _nearest(value, listed.get(name, ())) for name, value in call.arguments.items()}
    return call if arguments == dict(call.arguments) else replace(call, arguments=arguments)


def _nearest(value: Json, options: Sequence[str]) -> Json:
    if not isinstance(value, str) or value in options:
        return value
    alike = [option for option in options if option.strip().casefold() == value.strip().casefold()]
    return alike[0] if len(alike) == 1 else value
