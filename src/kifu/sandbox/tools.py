"""Tools of a sandbox: templates with typed places, filled to an argument list or to files, never to a shell string.

What a policy asks for is checked against the template. A tool that hands text to a shell says so itself, by naming
``/bin/sh -c`` in its template; the library joins no strings to a command.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from kifu.errors import ArgumentError, nearest
from kifu.sandbox.contract import Denied, Limits, Network, is_encodable
from kifu.sandbox.tree import path_problem

Given = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Free text."""

    max_chars: int = 16_384
    pattern: str = ""
    """Regular expression the whole text must match; empty for any."""
    may_be_option: bool = False
    """May begin with a dash, where the program would read it as one of its options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few texts."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelPath:
    """A path below the box's folder: plain names, no way up."""

    under: str = ""
    """Folder it must be in; empty for the box."""
    suffixes: tuple[str, ...] = ()
    """Endings it may have; empty for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A list of values of one kind, each an argument of its own."""

    of: Text | Choice | Whole | RelPath
    max_count: int = 32


ValueKind = Text | Choice | Whole | RelPath | Many


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place in a template."""

    name: str
    kind: ValueKind
    is_optional: bool = False
    """Left out when not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTool:
    """Runs a program of the image."""

    name: str
    argv: tuple[str | Slot, ...]
    """The program by its absolute path, fixed arguments, and slots."""
    description: str = ""
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    stdin: Slot | None = None
    limits: Limits | None = None
    """None for the policy's."""
    network: Network = Network.NONE
    is_warm: bool = False

    def __post_init__(self) -> None:
        first = self.argv[0] if self.argv else ""
        if not isinstance(first, str) or not first.startswith("/"):
            raise ArgumentError(f"tool {self.name!r}: the program is {first!r}, expected a fixed absolute path")
        names = [slot.name for slot in slots_of(self)]
        if len(set(names)) < len(names):
            raise ArgumentError(f"tool {self.name!r}: two slots have one name: {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTool:
    """Reads one file of the box, without running anything."""

    name: str = "read_file"
    description: str = "Read a file."
    max_bytes: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTool:
    """Lists files of the box with their sizes."""

    name: str = "list_files"
    description: str = "List files whose path fits a pattern; ** crosses folders."
    max_files: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTool:
    """Writes one file of the box."""

    name: str = "write_file"
    description: str = "Write a file."
    max_bytes: int = 262_144
    paths: RelPath = RelPath()


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTool:
    """Applies a unified diff to files of the box, exactly or not at all."""

    name: str = "apply_patch"
    description: str = "Apply a unified diff."
    max_bytes: int = 262_144


Tool = RunTool | ReadTool | ListTool | WriteTool | PatchTool


def shell(*, name: str = "bash", program: str = "/bin/sh", max_chars: int = 16_384) -> RunTool:
    """A tool whose one argument is a command for a shell in the box."""
    command = Slot(name="command", kind=Text(max_chars=max_chars, may_be_option=True))
    return RunTool(name=name, argv=(program, "-c", command), description="Run a shell command.")


def python(*, name: str = "python", program: str = "/usr/bin/python3", max_chars: int = 65_536) -> RunTool:
    """A tool whose one argument is a Python program, given to the interpreter on its standard input."""
    code = Slot(name="code", kind=Text(max_chars=max_chars, may_be_option=True))
    return RunTool(name=name, argv=(program, "-I", "-"), stdin=code, description="Run a Python program.")


def slots_of(tool: Tool) -> tuple[Slot, ...]:
    """What a tool takes."""
    match tool:
        case RunTool():
            places = [*tool.argv, *([tool.stdin] if tool.stdin else [])]
            return tuple(place for place in places if isinstance(place, Slot))
        case ReadTool():
            return (Slot(name="path", kind=RelPath()),)
        case ListTool():
            return (Slot(name="pattern", kind=Text(max_chars=1024), is_optional=True),)
        case WriteTool():
            text = Text(max_chars=tool.max_bytes, may_be_option=True)
            return (Slot(name="path", kind=tool.paths), Slot(name="text", kind=text))
        case PatchTool():
            return (Slot(name="patch", kind=Text(max_chars=tool.max_bytes, may_be_option=True)),)
        case _ as unreachable:
            assert_never(unreachable)


def find_tool(tools: tuple[Tool, ...], name: str) -> Tool:
    """The tool of that name.

    Raises:
        Denied: the policy has none.
    """
    for tool in tools:
        if tool.name == name:
            return tool
    raise Denied(f"no tool `{name[:100]}`; {nearest(name, [tool.name for tool in tools])}")


def check_arguments(tool: Tool, given: Given) -> dict[str, tuple[str, ...]]:
    """Every slot's value as the arguments it becomes; an optional one that is absent has none.

    Raises:
        Denied: one is unknown, missing, of another type or outside its limits.
    """
    slots = slots_of(tool)
    unknown = sorted(set(map(str, given)) - {slot.name for slot in slots})
    if unknown:
        raise Denied(f"{tool.name}: no argument {unknown[0][:100]!r}; it takes {[slot.name for slot in slots]}")
    found: dict[str, tuple[str, ...]] = {}
    for slot in slots:
        if slot.name not in given:
            if not slot.is_optional:
                raise Denied(f"{tool.name}: the argument {slot.name!r} is missing")
            found[slot.name] = ()
            continue
        found[slot.name] = _values(slot.kind, given[slot.name], f"{tool.name}: {slot.name}")
    return found


def fill(tool: RunTool, values: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The argument list."""
    argv: list[str] = []
    for place in tool.argv:
        argv += [place] if isinstance(place, str) else values[place.name]
    return tuple(argv)


def _values(kind: ValueKind, value: object, where: str) -> tuple[str, ...]:
    if not isinstance(kind, Many):
        return (_value(kind, value, where),)
    if not isinstance(value, list | tuple) or len(value) > kind.max_count:
        raise Denied(f"{where}: expected a list of at most {kind.max_count} values")
    return tuple(_value(kind.of, item, where) for item in value)


def _value(kind: Text | Choice | Whole | RelPath, value: object, where: str) -> str:
    if isinstance(kind, Whole):
        if not isinstance(value, int) or isinstance(value, bool) or not kind.low <= value <= kind.high:
            raise Denied(f"{where}: expected a whole number from {kind.low} to {kind.high}")
        return str(value)
    if not isinstance(value, str):
        raise Denied(f"{where}: expected text, got {type(value).__name__}")
    if "\0" in value or not is_encodable(value):
        raise Denied(f"{where}: the text holds a null character or half a character")
    match kind:
        case Text():
            _check_text(kind, value, where)
        case Choice():
            if value not in kind.options:
                raise Denied(f"{where}: {value[:100]!r} is none of {list(kind.options)}")
        case RelPath():
            _check_path(kind, value, where)
        case _ as unreachable:
            assert_never(unreachable)
    return value


def _check_text(kind: Text, value: str, where: str) -> None:
    if len(value) > kind.max_chars:
        raise Denied(f"{where}: {len(value)} characters, at most {kind.max_chars} are allowed")
    if value.startswith("-") and not kind.may_be_option:
        raise Denied(f"{where}: begins with a dash, which the program would read as an option")
    if kind.pattern and re.fullmatch(kind.pattern, value) is None:
        raise Denied(f"{where}: {value[:100]!r} does not have the form {kind.pattern}")


def _check_path(kind: RelPath, value: str, where: str) -> None:
    problem = path_problem(value)
    if problem or value.startswith("-"):
        raise Denied(f"{where}: {value[:100]!r}: {problem or 'it begins with a dash'}; give a path below the box")
    if kind.under and not value.startswith(f"{kind.under.rstrip('/')}/"):
        raise Denied(f"{where}: {value[:100]!r} is not in {kind.under}")
    if kind.suffixes and not value.endswith(kind.suffixes):
        raise Denied(f"{where}: {value[:100]!r} does not end in one of {list(kind.suffixes)}")
