"""A model's chat template, run as hostile input: sandboxed, bounded in steps, time and size, without files or clock.

The helpers are those templates are written for: ``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes,
loop controls and ``generation`` blocks.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
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
from kifu.render.template_limits import (
    MAX_CHARS,
    MAX_FORMAT,
    bounded,
    check_method,
    check_repetition,
    joined,
    refused,
    safe_filters,
)
from kifu.render.tokenizer import read_json

Value = TypeVar("Value")

MAX_STEPS = 200_000
MAX_SECONDS = 2.0
MAX_RANGE = 10_000
MAX_SOURCE = 262_144
"""Characters of a template. Those of known models have at most a tenth of it."""
_REMEMBERED = 256

_WIDE = re.compile(r"%[-_^#+ ]*[0-9]")
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
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
        self.filters = safe_filters(self.filters, tick=self.tick)
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
            raise refused(f"it ran longer than {MAX_STEPS} steps or {MAX_SECONDS} s")
        return ""

    def counted(self, items: Iterable[object]) -> Iterator[object]:
        """Count every item of a loop."""
        for item in items:
            self.tick()
            yield item

    def joined(self, *parts: object) -> str:
        """The ``~`` operator."""
        return bounded("".join(map(str, bounded(parts))))

    def made(self, value: Value) -> Value:
        """A list, tuple or dictionary that the template writes down."""
        self.tick()
        return bounded(value)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Refuse ``str.format``, whose widths are in its text."""
        if super().wrap_str_format(value) is None:
            return None
        raise refused("str.format is not allowed in a chat template")

    def call_binop(self, context: Context, operator: str, *operands: object, **named: object) -> object:
        """Compute left operator right, unless the result would be huge."""
        left, right = operands
        if operator == "%" and isinstance(left, str | bytes):
            raise refused("string formatting with % is not allowed in a chat template")
        if operator == "**" and not (_is_small(left, MAX_RANGE) and _is_small(right, 64)):
            raise refused(f"a power of {str(right)[:20]} is too large")
        if operator == "*":
            check_repetition(left, right)
        return bounded(super().call_binop(context, operator, left, right, **named))

    def call(self, context: Context, obj: Callable[..., object], *args: Any, **kwargs: object) -> object:  # noqa: ANN401 - a template's
        """Call a function or method a template names."""
        self.tick()
        name, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        check_method(owner, name, args)
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            return bounded(joined(owner, args[0]))
        return bounded(super().call(context, obj, *args, **kwargs))


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
        self._sandbox.globals["strftime_now"] = partial(_formatted, today)
        self.digest = hashlib.sha256(
            json.dumps([source, dict(variables), dict(options), today.isoformat()], sort_keys=True).encode()
        ).hexdigest()
        if len(source) > MAX_SOURCE:
            raise RenderError(f"the chat template has {len(source)} characters, at most {MAX_SOURCE} are read")
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
                    raise refused(f"it wrote more than {MAX_CHARS} characters")
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
    """Count steps in every loop and macro, and weigh what ``~`` and literals make."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _tick(loop.lineno))
        if loop.test is not None:
            loop.iter = _call("counted", [loop.iter], loop.lineno)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, _tick(macro.lineno))
    for block in tree.find_all(nodes.CallBlock):
        block.body.insert(0, _tick(block.lineno))
    _weigh(tree)


def _weigh(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_weighed(item) for item in value])
        else:
            setattr(node, name, _weighed(value))


def _weighed(item: Any) -> Any:  # noqa: ANN401 - fields of jinja2 nodes are untyped
    if not isinstance(item, nodes.Node):
        return item
    _weigh(item)
    match item:
        case nodes.Concat():
            return _call("joined", item.nodes, item.lineno)
        case nodes.List() | nodes.Dict():
            return _call("made", [item], item.lineno)
        case nodes.Tuple() if item.ctx == "load":
            return _call("made", [item], item.lineno)
        case _:
            return item


def _tick(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call("tick", [], line), lineno=line)


def _call(name: str, args: Sequence[Any], line: int) -> nodes.Call:
    # An attribute of the environment: unlike a variable, a template cannot assign it.
    target = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(target, list(args), [], None, None, lineno=line)


def _is_small(value: object, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _formatted(today: datetime, form: str) -> str:
    if len(form) > MAX_FORMAT or _WIDE.search(form):  # the system's own formatting pads
        raise refused("a format of the date with a width is not allowed in a chat template")
    return today.strftime(form)


def _short_range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise refused(f"a range of {len(found)} is longer than {MAX_RANGE}")
    return found


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
