"""A model's chat template, run as hostile input: sandboxed, bounded in steps, time and size, without files or clock.

The helpers are those templates are written for: ``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes,
loop controls and ``generation`` blocks.
"""

import hashlib
import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from datetime import datetime
from pathlib import Path
from sys import getsizeof
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
    MAX_RANGE,
    Budget,
    check_arguments,
    check_kept,
    check_method,
    check_repetition,
    has_attributes,
    namespaces,
    refused,
    safe_filters,
    safe_tests,
)
from kifu.render.template_syntax import check_syntax, instrument
from kifu.render.tokenizer import read_json

Value = TypeVar("Value")

MAX_SOURCE = 100_000
"""Characters of a template. Those of known models have at most a fifth of it."""
_REMEMBERED = 256
_REMEMBERED_CHARS = 16_000_000
_MAX_MESSAGE = 1_000
_MAX_FORMAT = 256
_DATE = re.compile(r"(?:[^%]|%[-_^#]?[aAbBcdDeFgGhHIjklmMnpPrRStTuUVwWxXyYzZ%])*", re.DOTALL)
"""Formats of the date without widths, which the system's own formatting pads to, and without ``%s``, which tells the
machine's time zone."""
_VIEWS = (KeysView, ValuesView, ItemsView)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for other libraries; here its body is just shown."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts steps and refuses results that are too large."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, today: datetime) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            optimized=False,
            finalize=self.written_out,
        )
        self.filters = safe_filters(self.filters, budget=self.budget)
        self.tests = safe_tests(self.tests, budget=self.budget)
        self.globals = {
            "dict": _new_dict,
            "namespace": namespaces(check_kept),
            "raise_exception": _raise_exception,
            "range": _short_range,
            "strftime_now": lambda form: _formatted(today, form),
        }

    @jinja2.pass_context  # without it jinja2 would make the text of constants once, as it compiles, uncounted
    def written_out(self, _: Context, value: object) -> str:
        """Text of a value in the output."""
        return self.budget.text(value)

    def tick(self) -> None:
        """Count one step."""
        self.budget.tick()

    def counted(self, items: Iterable[object]) -> Iterator[object]:
        """Count every item of a loop."""
        for item in items:
            self.tick()
            yield item

    def joined(self, *parts: object) -> str:
        """The ``~`` operator."""
        texts = [self.budget.text(part) for part in parts]
        if sum(map(len, texts)) > self.budget.value_bytes:
            raise refused("a concatenation is too large")
        return self.budget.made("".join(texts))

    def made(self, value: Value) -> Value:
        """A list, tuple or dictionary that the template writes down."""
        self.tick()
        return self.budget.made(value)

    def cut(self, value: Value) -> Value:
        """A slice, which is no heavier than the whole."""
        self.budget.look()
        self.budget.spend(getsizeof(value))
        return value

    def compared(self, value: Value) -> Value:
        """The outcome of a comparison."""
        self.budget.look()
        return value

    def written(self, text: str) -> str:
        """Text between the blocks."""
        return text

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether an attribute may be read."""
        return has_attributes(obj) and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - a template's
        """Look up an item; filters do so for every item and part of a path, and a tuple is hashed each time."""
        self.budget.look()
        return super().getitem(obj, argument)

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
            check_repetition(left, right, limit=self.budget.value_bytes)
        self.budget.look()
        return self.budget.made(super().call_binop(context, operator, left, right, **named))

    def call(self, context: Context, obj: Callable[..., object], *args: Any, **kwargs: Any) -> object:  # noqa: ANN401 - a template's
        """Call a function or method a template names."""
        self.tick()
        given = (*args, *kwargs.values())
        check_arguments(obj, given)
        name, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        check_method(owner, name, given, limit=self.budget.value_bytes)
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            return self.budget.joined(owner, args[0])
        found = super().call(context, obj, *args, **kwargs)
        return self.budget.given(list(found) if isinstance(found, _VIEWS) else found)


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
        self._sandbox = _Sandbox(today)
        self._rendered: dict[str, str] = {}
        self.digest = hashlib.sha256(
            json.dumps([source, dict(variables), dict(options), today.isoformat()], sort_keys=True).encode()
        ).hexdigest()
        if len(source) > MAX_SOURCE:
            raise RenderError(f"the chat template has {len(source)} characters, at most {MAX_SOURCE} are read")
        _check_text(source, "the chat template")
        try:
            tree = self._sandbox.parse(source)
            check_syntax(tree)
            instrument(tree)
            self._template = self._sandbox.from_string(tree)
        except Exception as cause:  # hostile text may reach any error of the compiler
            raise RenderError(f"the chat template cannot be compiled: {_told(cause)}") from cause

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
            text = self._render(list(messages), list(tools or ()), generation_prompt)
            room = _REMEMBERED_CHARS - len(text)
            while self._rendered and (
                len(self._rendered) >= _REMEMBERED or sum(map(len, self._rendered.values())) > room
            ):
                self._rendered.pop(next(iter(self._rendered)))
            self._rendered[key] = text
        return self._rendered[key]

    def _render(self, messages: list[object], tools: list[object], generation_prompt: bool) -> str:
        inputs = {**self._context, "messages": messages, "tools": tools or None, "documents": None}
        budget = self._sandbox.budget
        budget.restart(inputs)
        parts, size = [], 0
        try:
            for part in self._template.generate(**inputs, add_generation_prompt=generation_prompt):
                size += len(part)
                if size > budget.value_bytes:
                    raise refused(f"it wrote more than {budget.value_bytes} characters")
                parts.append(part)
        except Exception as cause:  # a hostile template may reach any error of Python's
            raise RenderError(f"the chat template failed: {_told(cause)}") from cause
        text = "".join(parts)
        _check_text(text, "what the chat template wrote")
        return text


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
        named = [entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default"]
        found = named[-1].get("template") if named else None
    if not isinstance(found, str):
        raise RenderError(
            f"{folder}: the model has no chat template (no chat_template.jinja, none in tokenizer_config.json). "
            "Use an instruction-tuned model, or put a template into the folder."
        )
    return ChatTemplate(source=found, variables=variables, options=options)


def _is_small(value: object, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _formatted(today: datetime, form: str) -> str:
    if len(form) > _MAX_FORMAT or not _DATE.fullmatch(form):
        raise refused("such a format of the date is not allowed in a chat template")
    return today.strftime(form)


def _short_range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise refused(f"a range of {len(found)} is longer than {MAX_RANGE}")
    return found


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401 - a template's
    return dict(*args, **kwargs)


def _told(cause: Exception) -> str:
    """What an error says, short enough to show; the template may have chosen its words."""
    return str(cause)[:_MAX_MESSAGE].encode(errors="backslashreplace").decode()


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise RenderError(f"{what} is no text: half of a surrogate pair at character {cause.start}") from cause
