"""What a chat template may make: values of bounded size, through methods and filters that cannot make others.

A container counts with everything in it, as often as it stands there: a list that holds another one twice shows and
compares it twice. Whatever is made is weighed when it is made, so that nothing heavier is ever there.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from inspect import signature
from itertools import chain
from typing import Any, TypeVar

import jinja2
from jinja2 import filters
from jinja2.nodes import EvalContext

Value = TypeVar("Value")
Filter = Callable[..., Any]

MAX_CHARS = 4_000_000
MAX_WIDTH = 64
"""Characters of an indentation or a separator, digits of a rounded number."""
MAX_BITS = 100_000
"""Of a whole number."""
MAX_FORMAT = 256
"""Characters of a format of the date."""

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
_FILTERS = frozenset(
    {"abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "indent", "int"}
    | {"items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"}
    | {"reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique"}
    | {"upper"}
)


def refused(why: str) -> jinja2.TemplateRuntimeError:
    """The error of a template that breaks a rule."""
    return jinja2.TemplateRuntimeError(why)


def bounded(value: Value) -> Value:
    """The value, unless it holds too much.

    Raises:
        TemplateRuntimeError: it does.
    """
    size = 0
    left: list[Any] = [value]
    while left:
        item = left.pop()
        match item:
            case str() | bytes():
                size += len(item)
            case bool() | None | float():
                size += 1
            case int():
                if item.bit_length() > MAX_BITS:
                    raise refused(f"a number of {item.bit_length()} bits is too large")
                size += 1
            case Mapping():
                size += len(item)
                left += chain(item.keys(), item.values()) if size <= MAX_CHARS else ()
            case list() | tuple() | set() | frozenset() | range():
                size += len(item)
                left += item if size <= MAX_CHARS else ()
        if size > MAX_CHARS:
            raise refused(f"a value of more than {MAX_CHARS} characters is too large")
    return value


def check_method(owner: object, name: str, args: tuple[Any, ...]) -> None:
    """Refuse methods of Python's types that are not known to be harmless.

    Args:
        owner: what the method belongs to; None where it is a function.
        name: of the method.
        args: of the call.

    Raises:
        TemplateRuntimeError: it may not be called, or not so.
    """
    if not isinstance(owner, _PLAIN):
        return
    allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset[str]())
    if name not in allowed:
        raise refused(f"{type(owner).__name__}.{name} is not allowed in a chat template")
    if isinstance(owner, str) and name == "replace" and len(args) > 1:
        _check_replacement(owner, *args[:2])


def check_repetition(left: object, right: object) -> None:
    """Refuse a product whose size would be too large, before it is there."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | bytes | list | tuple) and isinstance(other, int) and len(one) * other > MAX_CHARS:
            raise refused(f"a repetition of {other} is too large")


def joined(owner: str, items: Iterable[Any]) -> str:
    """``str.join``, whose items may come one by one."""
    found = bounded(list(items))
    if len(found) * len(owner) > MAX_CHARS:
        raise refused(f"{len(found)} separators of {len(owner)} characters are too large")
    return owner.join(found)


def safe_filters(known: Mapping[str, Filter], *, tick: Callable[[], object]) -> dict[str, Filter]:
    """The filters of templates, each of which counts as a step and makes nothing too large.

    Args:
        known: jinja2's.
        tick: counts a step.
    """
    own: dict[str, Filter] = {
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "sum": _sum,
        "tojson": tojson,
    }
    chosen = {**known, **own}
    return {name: _counted(chosen[name], tick) for name in sorted(_FILTERS)}


def _counted(item: Filter, tick: Callable[[], object]) -> Filter:
    @wraps(item)
    def counted(*args: object, **kwargs: object) -> object:
        tick()
        return bounded(item(*args, **kwargs))

    return counted


def _check_replacement(text: str, old: object, new: object) -> None:
    times = text.count(str(old)) if str(old) else len(text) + 1
    if times * len(str(new)) > MAX_CHARS:
        raise refused("a replacement is too large")


def _arguments(known: Filter, *args: object, **named: object) -> dict[str, Any]:
    """Arguments of one of jinja2's filters by name, however the template gave them."""
    bound = signature(known).bind(*args, **named)
    bound.apply_defaults()
    return bound.arguments


@jinja2.pass_eval_context
def _replace(*args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_replace, *args, **named)
    _check_replacement(str(given["s"]), given["old"], given["new"])
    return filters.do_replace(**given)


def _indent(*args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    width = _arguments(filters.do_indent, *args, **named)["width"]
    if (len(width) if isinstance(width, str) else width) > MAX_WIDTH:
        raise refused("an indentation is too large")
    return filters.do_indent(*args, **named)


def _round(*args: Any, **named: Any) -> float:  # noqa: ANN401 - a template's
    precision = _arguments(filters.do_round, *args, **named)["precision"]
    if abs(precision) > MAX_WIDTH:
        raise refused(f"rounding to {precision} digits is not allowed in a chat template")
    return filters.do_round(*args, **named)


@jinja2.pass_eval_context
def _join(eval_ctx: EvalContext, *args: Any, **named: Any) -> str:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_join, eval_ctx, *args, **named)
    got = _picked(eval_ctx.environment, given["value"], given["attribute"])
    return joined(str(given["d"]), map(str, bounded(list(got))))


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, *args: Any, **named: Any) -> float:  # noqa: ANN401 - a template's
    given = _arguments(filters.do_sum, environment, *args, **named)
    numbers = bounded([given["start"], *_picked(environment, given["iterable"], given["attribute"])])
    if not all(isinstance(item, int | float) for item in numbers):
        raise refused("a sum of what is no number is not allowed in a chat template")
    total: float = sum(numbers)
    return total


def _picked(environment: jinja2.Environment, items: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
    return items if attribute is None else map(filters.make_attrgetter(environment, attribute), items)


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
    bounded(value)
    write = partial(json.JSONEncoder, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return str(write().encode(value))
    parts, size = [], 0
    for part in write(indent=indent).iterencode(value):  # deep inside a list every line is indented often
        parts.append(part)
        size += len(part)
        if size > MAX_CHARS:
            raise refused("an indentation is too large")
    return "".join(parts)
