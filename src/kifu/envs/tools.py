"""Methods as tools: the marker, the schema read from type hints and docstring, the check of arguments."""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload
from weakref import WeakKeyDictionary

from kifu.envs.spec import ToolSpec
from kifu.errors import UsageError, nearest
from kifu.records import Json, ToolCall

Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "__kifu_tool__"
_JSON_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_CHECKS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@overload
def tool(method: Method) -> Method: ...
@overload
def tool(*, command: str | None = None) -> Callable[[Method], Method]: ...
def tool(method: Method | None = None, *, command: str | None = None) -> Any:
    """Mark a method as a tool of its environment.

    The first sentence of the docstring describes it, an ``Args:`` section its parameters, the type hints its schema
    (str, int, float, bool, ``Literal``, ``list[...]``, ``X | None``).

    Args:
        method: the method, when used without parentheses.
        command: how a call looks in the command dialect, e.g. ``"pickup {color} key"``.
    """

    def mark(target: Method) -> Method:
        setattr(target, _MARK, command or "")
        return target

    return mark if method is None else mark(method)


_READ: WeakKeyDictionary[type, tuple[ToolSpec, ...]] = WeakKeyDictionary()


def class_tools(cls: type) -> tuple[ToolSpec, ...]:
    """Specs of every method of ``cls`` marked with `tool`, in order of definition, inherited ones first."""
    if cls not in _READ:
        names = [name for base in reversed(cls.__mro__) for name, item in vars(base).items() if hasattr(item, _MARK)]
        _READ[cls] = tuple(tool_spec(name, getattr(cls, name)) for name in dict.fromkeys(names))
    return _READ[cls]


def tool_spec(name: str, method: Callable[..., Any]) -> ToolSpec:
    """Read one spec from a method or function.

    Raises:
        UsageError: a parameter has no type hint or one that JSON cannot express.
    """
    hints = get_type_hints(method)
    described = _parameter_docs(inspect.getdoc(method) or "")
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.name not in hints:
            raise UsageError(f"tool `{name}`: parameter `{parameter.name}` has no type hint; add one, e.g. `: str`")
        schema = _schema(hints[parameter.name], where=f"tool `{name}`, parameter `{parameter.name}`")
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    summary = (inspect.getdoc(method) or "").strip().split("\n\n")[0].replace("\n", " ")
    return ToolSpec(
        name=name,
        description=summary,
        parameters={"type": "object", "properties": properties, "required": required},
        command=getattr(method, _MARK, "") or None,
    )


def _schema(hint: object, where: str) -> dict[str, Json]:
    if isinstance(hint, type) and hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        kinds = {_JSON_TYPES.get(type(value)) for value in args}
        if len(kinds) == 1 and None not in kinds:
            return {"type": str(kinds.pop()), "enum": list(args)}
    if origin is list and len(args) == 1:
        return {"type": "array", "items": _schema(args[0], where)}
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        if len(rest) == 1:
            return _schema(rest[0], where)
    raise UsageError(f"{where}: found type {hint}; use str, int, float, bool, Literal, list[...] or X | None")


def _parameter_docs(doc: str) -> dict[str, str]:
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?)+)", doc, re.MULTILINE)
    if section is None:
        return {}
    return {name: text.strip() for name, text in re.findall(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$", section[1], re.M)}


def with_enum(spec: ToolSpec, parameter: str, values: Sequence[Json]) -> ToolSpec:
    """The same tool with one parameter limited to ``values``, for tools whose choices depend on the task."""
    return _limited(spec, parameter, {"enum": list(values)})


def with_pattern(spec: ToolSpec, parameter: str, pattern: str) -> ToolSpec:
    """The same tool with one text limited to a regular expression, ``^...$``; a grammar spells such an argument."""
    return _limited(spec, parameter, {"pattern": pattern})


def _limited(spec: ToolSpec, parameter: str, limit: Mapping[str, Json]) -> ToolSpec:
    properties = _properties(spec)
    if parameter not in properties:
        raise UsageError(f"tool `{spec.name}` has no parameter `{parameter}`; {nearest(parameter, list(properties))}")
    schema = properties[parameter]
    limited: dict[str, Json] = {**(schema if isinstance(schema, dict) else {}), **limit}
    return replace(spec, parameters={**spec.parameters, "properties": {**properties, parameter: limited}})


def finite_calls(specs: Sequence[ToolSpec], allowed: Sequence[str] | None = None) -> tuple[ToolCall, ...] | None:
    """Every call the tools admit, in a fixed order; None when a parameter has no ``enum``.

    Args:
        specs: the tools.
        allowed: names the phase allows; None allows all.
    """
    calls: list[ToolCall] = []
    for spec in specs:
        if allowed is not None and spec.name not in allowed:
            continue
        choices: list[list[Json]] = []
        for schema in _properties(spec).values():
            options = schema.get("enum") if isinstance(schema, dict) else None
            if not isinstance(options, list):
                return None
            choices.append(options)
        names = list(_properties(spec))
        calls += [ToolCall(name=spec.name, arguments=dict(zip(names, row, strict=True))) for row in product(*choices)]
    return tuple(calls)


def command_text(spec: ToolSpec, arguments: Mapping[str, Json]) -> str:
    """How a call looks in the command dialect: the tool's template, or its name and arguments in order."""
    if spec.command is None:
        return " ".join([spec.name, *(str(arguments[name]) for name in _properties(spec) if name in arguments)])
    return re.sub(r"\{(\w+)\}", lambda found: str(arguments[found[1]]), spec.command)


def _properties(spec: ToolSpec) -> Mapping[str, Json]:
    properties = spec.parameters.get("properties", {})
    return properties if isinstance(properties, dict) else {}


def check_call(specs: Sequence[ToolSpec], call: ToolCall) -> ToolSpec:
    """The tool a call names, after its arguments are checked.

    Raises:
        UsageError: no such tool, or arguments that do not fit.
    """
    known = {spec.name: spec for spec in specs}
    if call.name not in known:
        raise UsageError(f"no tool `{call.name}`; {nearest(call.name, list(known))}")
    check_arguments(known[call.name], call.arguments)
    return known[call.name]


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Json]) -> None:
    """Check the arguments of a call against the tool's schema, without coercion.

    Raises:
        UsageError: names the tool, the argument, what was found and what was expected.
    """
    properties = _properties(spec)
    required = spec.parameters.get("required", [])
    for name, value in arguments.items():
        schema = properties.get(name)
        if not isinstance(schema, dict):
            hint = nearest(name, list(properties)) if properties else "It takes none."
            raise UsageError(f"tool `{spec.name}` has no argument `{name}`; {hint}")
        _check_value(schema, value, where=f"tool `{spec.name}`, argument `{name}`")
    missing = [name for name in required if name not in arguments] if isinstance(required, list) else []
    if missing:
        raise UsageError(f"tool `{spec.name}` needs argument `{missing[0]}`")


def _check_value(schema: Mapping[str, Json], value: Json, where: str) -> None:
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _CHECKS and not _is(kind, value):
        raise UsageError(f"{where}: found {value!r}, expected {kind}")
    options = schema.get("enum")
    if isinstance(options, list) and value not in options:
        raise UsageError(f"{where}: found {value!r}, expected one of {', '.join(map(repr, options))}")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and isinstance(value, str) and not _fits(pattern, value):
        raise UsageError(f"{where}: found {value!r:.200}, expected a text of the pattern {pattern}")
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict):
        for item in value:
            _check_value(items, item, where)


def _fits(pattern: str, value: str) -> bool:
    """As JSON Schema says it: anywhere in the value, unless anchored; ``$`` is its very end."""
    ended = f"{pattern[:-1]}\\Z" if pattern.endswith("$") and not pattern.endswith("\\$") else pattern
    return re.search(ended, value, re.ASCII) is not None


def _is(kind: str, value: Json) -> bool:
    return isinstance(value, _CHECKS[kind]) and (kind == "boolean" or not isinstance(value, bool))
