"""What a column can hold exactly, and a message that names the place when it cannot."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeAlias

import pyarrow as pa

from kifu.errors import RecordError
from kifu.records.schema import SCHEMA

_Place: TypeAlias = "tuple[_Place | None, str]"
"""Parent and own name; put together only for a message."""
_Check: TypeAlias = Callable[[Any, _Place], None]


def check_storable(row: Mapping[str, Any], where: str) -> None:
    """Refuse a row with a value that its column would lose or change.

    Raises:
        RecordError: a non-finite number, text that is not UTF-8, an integer out of range, another type.
    """
    for name, check in _CHECKS.items():
        value = row[name]
        if value is not None:
            check(value, (None, f"{where}: {name}"))


def _compile(kind: pa.DataType) -> _Check:
    """The check of a column type, made once: walking pyarrow's types for every value would cost more than the rest."""
    if pa.types.is_struct(kind):
        return _struct_check({f".{field.name}": _compile(field.type) for field in kind})
    if pa.types.is_list(kind):
        # lists of numbers are arrays that were checked when they were made
        return _no_check if pa.types.is_primitive(kind.value_type) else _list_check(_compile(kind.value_type))
    if pa.types.is_string(kind):
        return _check_text
    if pa.types.is_floating(kind):
        return _check_float
    return _integer_check(kind.bit_width) if pa.types.is_integer(kind) else _check_bool


def _struct_check(checks: Mapping[str, _Check]) -> _Check:
    named = [(name, name[1:], check) for name, check in checks.items()]

    def check(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
        for step, name, inner in named:
            item = value[name]
            if item is not None:
                inner(item, (place, step))

    return check


def _list_check(inner: _Check) -> _Check:
    def check(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
        for at, item in enumerate(value):
            if item is not None:
                inner(item, (place, f"[{at}]"))

    return check


def _no_check(_: Any, __: _Place) -> None:  # noqa: ANN401 - any part of a row
    return None


def _integer_check(bits: int) -> _Check:
    limit = 1 << (bits - 1)

    def check(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise RecordError(f"{_text(place)} is {value!r}, expected an integer of {bits} bits")

    return check


def _check_float(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
    if not isinstance(value, float) or not isfinite(value):
        raise RecordError(
            f"{_text(place)} is {value!r}, expected a finite float; leave it out (None) when it is unknown"
        )


def _check_bool(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
    if not isinstance(value, bool):
        raise RecordError(f"{_text(place)} is {value!r}, expected a boolean")


def _check_text(value: Any, place: _Place) -> None:  # noqa: ANN401 - any part of a row
    if not isinstance(value, str):
        raise RecordError(f"{_text(place)} is {value!r}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as cause:
        raise RecordError(
            f"{_text(place)} is not text in UTF-8: {cause}; decode bytes with errors='replace'"
        ) from cause


def _text(place: _Place) -> str:
    parent, name = place
    return name if parent is None else _text(parent) + name


_CHECKS = {field.name: _compile(field.type) for field in SCHEMA}
