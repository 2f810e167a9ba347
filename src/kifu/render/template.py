"""A model's chat template, run as hostile input: sandboxed, bounded in steps, time and size, without files or clock.

The helpers are those templates are written for: ``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes,
loop controls and ``generation`` blocks.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kifu.errors import RenderError
from kifu.render.tokenizer import read_json

Value = TypeVar("Value")

MAX_STEPS = 200_000
MAX_SECONDS = 2.0
MAX_CHARS = 4_000_000
MAX_RANGE = 10_000
_REMEMBERED = 256

_FILTERS = frozenset(
    {"abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int"}
    | {"items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"}
    | {"reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique"}
    | {"upper"}
)
_WIDENING = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"})
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for other libraries; here its body is just shown."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts steps and refuses results that are too large."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters = {name: _capped(item) for name, item in self.filters.items() if name in _FILTERS}
        self.filters["tojson"] = _tojson
        self.globals["range"] = _short_range
        self.globals["raise_exception"] = _raise_exception
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self._steps = 0
        self._deadline = 0.0

    def restart(self) -> None:
        """Begin a render: nothing is used up yet."""
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def tick(self) -> str:
        """Count one step."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._deadline:
            raise jinja2.TemplateRuntimeError(f"it ran longer than {MAX_STEPS} steps or {MAX_SECONDS} s")
        return ""

    def counted(self, items: Iterable[object]) -> Iterator[object]:
        """Count every item of a loop."""
        for item in items:
            self.tick()
            yield item

    def joined(self, *parts: object) -> str:
        """The ``~`` operator."""
        return _check_size("".join(map(str, parts)))

    def call_binop(self, context: Context, operator: str, *operands: object, **named: object) -> object:
        """Compute left operator right, unless the result would be huge."""
        left, right = operands
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateRuntimeError("string formatting with % is not allowed in a chat template")
        if operator == "**" and not (_is_small(left, MAX_RANGE) and _is_small(right, 64)):
            raise jinja2.TemplateRuntimeError(f"power {left}**{right} is too large")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > MAX_CHARS:
                    raise jinja2.TemplateRuntimeError(f"a repetition of {other} is too large")
        return _check_size(super().call_binop(context, operator, left, right, **named))

    def call(self, context: Context, obj: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Call a function or method a template names."""
        self.tick()
        name, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if name in _WIDENING:
                raise jinja2.TemplateRuntimeError(f"str.{name} is not allowed in a chat template")
            if name == "replace" and len(args) > 1:
                _check_replacement(owner, *args[:2])
        return _check_size(super().call(context, obj, *args, **kwargs))


class ChatTemplate:
    """One compiled chat template.

    Args:
        source: the template.
        variables: special tokens by the names templates know them (``bos_token`` ...).
        options: further variables, e.g. ``{"enable_thinking": False}``.
        today: what ``strftime_now`` tells; an argument, so that a run can be repeated.
    """

    def __init__(
        self,
        *,
        source: str,
        variables: Mapping[str, str],
        options: Mapping[str, bool | str] = MappingProxyType({}),
        today: datetime = datetime(2025, 1, 1),
    ) -> None:
        self.source = source
        self._context = {**variables, **options}
        self._sandbox = _Sandbox()
        self._rendered: dict[str, str] = {}
        self._sandbox.globals["strftime_now"] = today.strftime
        self.digest = hashlib.sha256(
            json.dumps([source, dict(variables), dict(options), today.isoformat()], sort_keys=True).encode()
        ).hexdigest()
        try:
            tree = self._sandbox.parse(source)
            _instrument(tree)
            self._template = self._sandbox.from_string(tree)
        except _FAILURES as cause:
            raise RenderError(f"the chat template cannot be compiled: {cause}") from cause

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool,
    ) -> str:
        """Text of a conversation; remembered, since most conversations differ in their contents only.

        Raises:
            RenderError: the template refuses the conversation, breaks a rule of the sandbox or grows without end.
        """
        key = json.dumps([messages, tools, generation_prompt], default=dict)
        if key not in self._rendered:
            if len(self._rendered) >= _REMEMBERED:
                self._rendered.pop(next(iter(self._rendered)))
            self._rendered[key] = self._render(list(messages), list(tools or ()), generation_prompt)
        return self._rendered[key]

    def _render(self, messages: list[object], tools: list[object], generation_prompt: bool) -> str:
        self._sandbox.restart()
        parts, size = [], 0
        context = {**self._context, "messages": messages, "add_generation_prompt": generation_prompt}
        try:
            for part in self._template.generate(**context, tools=tools or None, documents=None):
                size += len(part)
                if size > MAX_CHARS:
                    raise jinja2.TemplateRuntimeError(f"it wrote more than {MAX_CHARS} characters")
                parts.append(part)
        except _FAILURES as cause:
            raise RenderError(f"the chat template failed: {cause}") from cause
        return "".join(parts)


def load_template(
    folder: Path, *, variables: Mapping[str, str], options: Mapping[str, bool | str] = MappingProxyType({})
) -> ChatTemplate:
    """Load ``chat_template.jinja`` or the template in ``tokenizer_config.json`` of a model folder.

    Raises:
        RenderError: the model has no chat template, or it cannot be compiled.
    """
    path = folder / "chat_template.jinja"
    found: Any = None
    if path.is_file():
        try:
            found = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as cause:
            raise RenderError(f"{path}: not UTF-8 ({cause.reason} at byte {cause.start}); save it as UTF-8") from cause
    if found is None:
        found = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    if not isinstance(found, str):
        raise RenderError(
            f"{folder}: the model has no chat template (no chat_template.jinja, none in tokenizer_config.json). "
            "Use an instruction-tuned model, or put a template into the folder."
        )
    return ChatTemplate(source=found, variables=variables, options=options)


def _instrument(tree: nodes.Template) -> None:
    """Count steps in every loop and macro, and route ``~`` through a size check."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _tick(loop.lineno))
        if loop.test is not None:
            loop.iter = _call("counted", [loop.iter], loop.lineno)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, _tick(macro.lineno))
    for block in tree.find_all(nodes.CallBlock):
        block.body.insert(0, _tick(block.lineno))
    _replace_concat(tree)


def _replace_concat(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_without_concat(item) for item in value])
        else:
            setattr(node, name, _without_concat(value))


def _without_concat(item: Any) -> Any:  # noqa: ANN401 - fields of jinja2 nodes are untyped
    if not isinstance(item, nodes.Node):
        return item
    _replace_concat(item)
    return _call("joined", item.nodes, item.lineno) if isinstance(item, nodes.Concat) else item


def _tick(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call("tick", [], line), lineno=line)


def _call(name: str, args: Sequence[Any], line: int) -> nodes.Call:
    # An attribute of the environment: unlike a variable, a template cannot assign it.
    target = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(target, list(args), [], None, None, lineno=line)


def _is_small(value: object, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _check_size(value: Value) -> Value:
    if isinstance(value, str | list | tuple) and len(value) > MAX_CHARS:
        raise jinja2.TemplateRuntimeError(f"a value of {len(value)} characters is too large")
    return value


def _check_replacement(text: str, old: object, new: object) -> None:
    times = text.count(str(old)) if str(old) else len(text) + 1
    if times * len(str(new)) > MAX_CHARS:
        raise jinja2.TemplateRuntimeError("a replacement is too large")


def _capped(item: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(item)
    def capped(*args: object, **kwargs: object) -> object:
        if item.__name__ == "do_replace" and len(args) > 3:
            _check_replacement(str(args[1]), args[2], args[3])
        if item.__name__ == "do_indent" and any(isinstance(arg, int) and arg > 64 for arg in args[1:]):
            raise jinja2.TemplateRuntimeError("an indentation is too large")
        return _check_size(item(*args, **kwargs))

    return capped


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    *,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and indent > 64:
        raise jinja2.TemplateRuntimeError("an indentation is too large")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_check_size(text))


def _short_range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise jinja2.TemplateRuntimeError(f"a range of {len(found)} is longer than {MAX_RANGE}")
    return found


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
