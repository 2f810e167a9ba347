"""What a chat template may make: values of bounded size, through methods and filters that cannot make others.

Sizes are bytes of memory. A container counts with everything in it, as often as it stands there: a list that holds
another one twice shows and compares it twice. A value is weighed when it is made, so nothing heavier is ever there and
whatever is done with one value takes milliseconds; between two such operations the `Budget` looks at its clock.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from inspect import signature
from itertools import chain
from sys import getsizeof
from typing import Any, TypeVar

import jinja2
from jinja2 import filters
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.utils import Namespace

Value = TypeVar("Value")
Filter = Callable[..., Any]

MAX_STEPS = 200_000
MAX_SECONDS = 2.0
MAX_VALUE_BYTES = 500_000
"""Of one value, and of the whole output, beside ``VALUE_PER_INPUT`` bytes for each byte of the inputs."""
VALUE_PER_INPUT = 4
MAX_MADE_BYTES = 32_000_000
"""Of all values of a render, beside ``MADE_PER_INPUT`` bytes for each byte of the inputs."""
MADE_PER_INPUT = 64
MAX_DEPTH = 64
"""Of containers in containers. Python hashes nested tuples without looking at its stack."""
MAX_WIDTH = 64
"""Characters of an indentation, a separator or a set to strip, digits of a rounded number."""
MAX_NEEDLE = 256
"""Characters of what is searched from the right: that takes the product of both lengths."""
MAX_BITS = 256
"""Of a whole number."""
MAX_RANGE = 10_000
_STEP_BYTES = 64
_CHAR_BYTES = 4
_ITEM_BYTES = 8

_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {"capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"}
        | {"isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"}
        | {"removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"}
        | {"splitlines", "startswith", "strip", "swapcase", "title", "upper"}
    ),
    Mapping: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    range: frozenset({"count", "index"}),
}
"""Methods of Python's own types that a template may call. The others pad, encode, change their object, or stand in no
template we know."""
_PLAIN = (*_METHODS, bytes, bytearray, int, float, complex, set, frozenset)
_DATA = (str, int, float, complex, list, tuple, dict, Mapping, range, type(None), jinja2.Undefined)
"""What may stand in a container and be shown. Functions, methods, macros and loops have addresses and insides."""
_ITERATOR: type = type(iter([]))
_GIVEN = (EvalContext, jinja2.Environment, Context)
_FROM_RIGHT = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
_STRIPPING = frozenset({"strip", "lstrip", "rstrip"})
SET_BLOCK = "set block"
"""Filter that weighs the text of a set block; for its space no filter of jinja2 or of a template has this name."""
_LAZY = frozenset({"items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "unique"})
"""Filters that would give a generator; here the items are made at once and handed out one by one."""
_OF_ANYTHING = frozenset({"attr", "d", "default"})
_FILTERS = frozenset(
    {"abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int"}
    | {"items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"}
    | {"reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique"}
    | {"upper"}
)


def refused(why: str) -> jinja2.TemplateRuntimeError:
    """The error of a template that breaks a rule."""
    return jinja2.TemplateRuntimeError(why)


def weigh(value: object, *, limit: int | None = None) -> int:
    """Bytes of a value with everything in it.

    Args:
        value: anything.
        limit: of a value that a template made; None for its inputs, which are taken as they are.

    Raises:
        TemplateRuntimeError: it is heavier, nested too deep, or holds what no container may hold.
    """
    size, depth, level = 0, 0, [value]
    while level:
        below: list[Any] = []
        for item in level:
            size += getsizeof(item)
            if limit is not None:
                _check_item(item, size, depth=depth, limit=limit)
            if isinstance(item, str | int | float):
                continue
            if isinstance(item, Mapping):
                size += 16 * len(item)
                below += chain(item.keys(), item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                below += item
        level, depth = below, depth + 1
    return size


def _check_item(item: object, size: int, *, depth: int, limit: int) -> None:
    if size > limit:
        raise refused(f"a value of more than {limit} bytes is too large")
    if depth > MAX_DEPTH:
        raise refused(f"a value nested deeper than {MAX_DEPTH} is not allowed in a chat template")
    if isinstance(item, int) and item.bit_length() > MAX_BITS:
        raise refused(f"a number of {item.bit_length()} bits is too large")
    if depth and not isinstance(item, _DATA):
        raise refused(f"a {type(item).__name__} in a container is not allowed in a chat template")


class Budget:
    """What one render may still use. ``restart`` comes first."""

    value_bytes: int
    """Of one value."""

    def __init__(self) -> None:
        self.restart(())

    def restart(self, inputs: object) -> None:
        """Nothing is used up yet; limits of size grow with the inputs."""
        weight = weigh(inputs)
        self.value_bytes = MAX_VALUE_BYTES + VALUE_PER_INPUT * weight
        self._made_bytes = MAX_MADE_BYTES + MADE_PER_INPUT * weight
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def look(self) -> None:
        """Look at the clock.

        Raises:
            TemplateRuntimeError: the time is over.
        """
        if time.monotonic() > self._deadline:
            raise refused(f"it ran longer than {MAX_STEPS} steps or {MAX_SECONDS} s")

    def tick(self) -> None:
        """Count one step.

        Raises:
            TemplateRuntimeError: it is one too many, or the time is over.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise refused(f"it ran longer than {MAX_STEPS} steps or {MAX_SECONDS} s")
        self.look()

    def spend(self, size: int) -> None:
        """Count bytes as if the template kept all it makes until the end.

        Raises:
            TemplateRuntimeError: they are too many.
        """
        self._made_bytes -= size + _STEP_BYTES
        if self._made_bytes < 0:
            raise refused("it made more than a chat template needs")

    def made(self, value: Value) -> Value:
        """A new container or text of old items, unless it holds too much."""
        weigh(value, limit=self.value_bytes)
        self.spend(getsizeof(value))
        return value

    def given(self, value: Value) -> Value:
        """What a function gave, whose items may be new too, unless it holds too much."""
        self.made(value)
        if isinstance(value, list | tuple):
            self.spend(sum(getsizeof(item) for item in value if not isinstance(item, list | Mapping)))
        return value

    def text(self, value: object) -> str:
        """Text of a value in the output or a part of it; its length counts as if no character were ASCII.

        Raises:
            TemplateRuntimeError: it is too long, or nothing that may be shown.
        """
        found = str(shown(value))
        self.spend(_CHAR_BYTES * len(found))
        if len(found) > self.value_bytes:
            raise refused(f"a text of more than {self.value_bytes} characters is too large")
        self.look()
        return found

    def joined(self, owner: str, items: Iterable[Any]) -> str:
        """``str.join``, whose items may come one by one."""
        found = self.made(list(items))
        if len(found) * getsizeof(owner) > self.value_bytes:
            raise refused(f"{len(found)} separators of {len(owner)} characters are too large")
        return self.made(owner.join(found))


def shown(value: Value) -> Value:
    """A value that has a text of its own: no function, whose text is an address."""
    if not isinstance(value, _DATA):
        raise refused(f"a {type(value).__name__} cannot be shown")
    return value


def has_attributes(value: object) -> bool:
    """Whether a template may read attributes: data, namespaces and loops, but no function."""
    return isinstance(value, (*_DATA, Namespace, LoopContext))


def namespaces(kept: Callable[[Any], Any]) -> type[Namespace]:
    """The ``namespace`` of templates, which checks what is put into it; jinja2 writes into no other type.

    Args:
        kept: gives its argument back or refuses it.
    """

    class TemplateNamespace(Namespace):
        def __setitem__(self, name: str, value: object) -> None:
            super().__setitem__(name, kept(value))

        def __repr__(self) -> str:
            return "<Namespace>"

    return TemplateNamespace


def check_kept(value: Value) -> Value:
    """A value that a namespace may hold: data, or an iterator over some."""
    if not isinstance(value, (*_DATA, _ITERATOR)):
        raise refused(f"a {type(value).__name__} in a namespace is not allowed in a chat template")
    return value


def check_arguments(target: object, args: Iterable[object]) -> None:
    """Refuse arguments that are no data, except those of the template's own macros."""
    if not isinstance(target, Macro):
        for item in args:
            if not isinstance(item, (*_DATA, _ITERATOR)):
                raise refused(f"a {type(item).__name__} as an argument is not allowed in a chat template")


def check_method(owner: object, name: str, args: tuple[Any, ...], *, limit: int) -> None:
    """Refuse methods of Python's types that are not known to be harmless.

    Args:
        owner: what the method belongs to; None where it is a function.
        name: of the method.
        args: of the call, those by name included.
        limit: bytes of a value.

    Raises:
        TemplateRuntimeError: it may not be called, or not so.
    """
    if isinstance(owner, type):
        raise refused(f"{owner.__name__}.{name} is not allowed in a chat template")
    if not isinstance(owner, _PLAIN):
        return
    allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset[str]())
    if name not in allowed:
        raise refused(f"{type(owner).__name__}.{name} is not allowed in a chat template")
    if not isinstance(owner, str):
        return
    if name == "replace" and len(args) > 1:
        _check_replacement(owner, *args[:2], limit=limit)
    longest = MAX_NEEDLE if name in _FROM_RIGHT else MAX_WIDTH if name in _STRIPPING else None
    if longest is not None and any(isinstance(item, str) and len(item) > longest for item in args):
        raise refused(f"{name} with more than {longest} characters is not allowed in a chat template")


def check_repetition(left: Any, right: Any, *, limit: int) -> None:  # noqa: ANN401 - a template's
    """Refuse a product whose size would be too large, before it is there."""
    for one, other in ((left, right), (right, left)):
        item_bytes = 1 if isinstance(one, str | bytes) else _ITEM_BYTES if isinstance(one, list | tuple) else None
        if item_bytes is not None and isinstance(other, int) and len(one) * item_bytes * other > limit:
            raise refused(f"a repetition of {str(other)[:20]} is too large")


def safe_filters(known: Mapping[str, Filter], *, budget: Budget) -> dict[str, Filter]:
    """The filters of templates, each of which counts as a step and makes nothing too large.

    Args:
        known: jinja2's.
        budget: of the render.
    """
    own: dict[str, Filter] = {
        "indent": partial(_indent, budget),
        "join": _passed(filters.do_join, partial(_join, budget)),
        "replace": _passed(filters.do_replace, partial(_replace, budget)),
        "round": _round,
        SET_BLOCK: _as_it_is,
        "sum": _passed(filters.do_sum, partial(_sum, budget)),
        "tojson": _json_writer(budget),
        "trim": _trim,
    }
    chosen = {**known, **own}
    return {name: _counted(chosen[name], name, budget=budget) for name in sorted({*_FILTERS, SET_BLOCK})}


def safe_tests(known: Mapping[str, Any], *, budget: Budget) -> dict[str, Any]:
    """jinja2's tests, which look at the clock: filters call them once for each item."""

    def watched(item: Filter) -> Filter:
        @wraps(item)
        def test(*args: object, **kwargs: object) -> object:
            budget.look()
            return item(*args, **kwargs)

        return test

    return {name: watched(item) for name, item in known.items()}


def _passed(known: Filter, own: Filter) -> Filter:
    """Our own form of a filter that jinja2 gives its context first."""
    return wraps(known)(own)


def _counted(item: Filter, name: str, *, budget: Budget) -> Filter:
    @wraps(item)
    def counted(*args: object, **kwargs: object) -> object:
        budget.tick()
        given = args[1:] if args and isinstance(args[0], _GIVEN) else args
        if name not in _OF_ANYTHING:
            check_arguments(None, chain(given, kwargs.values()))
        found = item(*args, **kwargs)
        if name not in _LAZY or isinstance(found, _DATA):
            return budget.given(found)
        return iter(budget.given(list(_watched(found, budget))))

    return counted


def _watched(items: Iterable[Value], budget: Budget) -> Iterator[Value]:
    for item in items:
        budget.look()
        yield item


def _as_it_is(text: str) -> str:
    return text


def _check_replacement(text: str, old: object, new: object, *, limit: int) -> None:
    times = text.count(str(old)) if str(old) else len(text) + 1
    if times * len(str(new)) * _CHAR_BYTES > limit:
        raise refused("a replacement is too large")


def _arguments(known: Filter, *args: object, **named: object) -> dict[str, Any]:
    """Arguments of one of jinja2's filters by name, however the template gave them."""
    bound = signature(known).bind(*args, **named)
    bound.apply_defaults()
    return bound.arguments


def _replace(budget: Budget, *args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_replace, *args, **named)
    _check_replacement(str(given["s"]), given["old"], given["new"], limit=budget.value_bytes)
    return filters.do_replace(**given)


def _indent(budget: Budget, *args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_indent, *args, **named)
    width = len(given["width"]) if isinstance(given["width"], str) else given["width"]
    lines = len(str(given["s"]).splitlines()) + 1
    if width > MAX_WIDTH or lines * width * _CHAR_BYTES > budget.value_bytes:
        raise refused("an indentation is too large")
    return filters.do_indent(*args, **named)


def _trim(*args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    chars = _arguments(filters.do_trim, *args, **named)["chars"]
    if chars is not None and len(chars) > MAX_WIDTH:
        raise refused(f"trim with more than {MAX_WIDTH} characters is not allowed in a chat template")
    return filters.do_trim(*args, **named)


def _round(*args: Any, **named: Any) -> float:  # noqa: ANN401 - a template's
    precision = _arguments(filters.do_round, *args, **named)["precision"]
    if abs(precision) > MAX_WIDTH:
        raise refused(f"rounding to {precision} digits is not allowed in a chat template")
    return filters.do_round(*args, **named)


def _join(budget: Budget, eval_ctx: EvalContext, *args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_join, eval_ctx, *args, **named)
    got = _picked(eval_ctx.environment, given["value"], given["attribute"])
    return budget.joined(str(given["d"]), map(str, budget.made(list(got))))


def _sum(
    budget: Budget,
    environment: jinja2.Environment,
    *args: Any,  # noqa: ANN401 - a template's
    **named: Any,  # noqa: ANN401 - a template's
) -> float:
    given = _arguments(filters.do_sum, environment, *args, **named)
    numbers = budget.made([given["start"], *_picked(environment, given["iterable"], given["attribute"])])
    if not all(isinstance(item, int | float) for item in numbers):
        raise refused("a sum of what is no number is not allowed in a chat template")
    total: float = sum(numbers)
    return total


def _picked(environment: jinja2.Environment, items: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
    return items if attribute is None else map(filters.make_attrgetter(environment, attribute), items)


def _json_writer(budget: Budget) -> Filter:
    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        *,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """The filter as chat templates expect it: characters as they are, no escapes for HTML."""
        if (indent or 0) > MAX_WIDTH or any(len(item) > MAX_WIDTH for item in separators or ()):
            raise refused("an indentation is too large")
        weigh(value, limit=budget.value_bytes)
        write = partial(json.JSONEncoder, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
        if indent is None:
            return str(write().encode(value))
        parts, size = [], 0
        for part in write(indent=indent).iterencode(value):  # deep inside a list every line is indented often
            parts.append(part)
            size += len(part)
            if size > budget.value_bytes:
                raise refused("an indentation is too large")
        return "".join(parts)

    return tojson
