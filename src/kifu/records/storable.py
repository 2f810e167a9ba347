"""What a column can hold exactly, and a message that names the place when it cannot."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import pyarrow as pa

from kifu.errors import RecordError
from kifu.records.schema import SCHEMA

_FIELDS = {field.name: field.type for field in SCHEMA}


def check_storable(row: Mapping[str, Any], where: str) -> None:
    """Refuse a row with a value that its column would lose or change.

    Raises:
        RecordError: a non-finite number, text that is not UTF-8, an integer out of range, another type.
    """
    for name, value in row.items():
        _check(value, _FIELDS[name], f"{where}: {name}")


def _check(value: Any, kind: pa.DataType, where: str) -> None:  # noqa: ANN401 - any part of a row
    if value is None:
        return
    if pa.types.is_struct(kind):
        for field in kind:
            _check(value[field.name], field.type, f"{where}.{field.name}")
    elif pa.types.is_list(kind):
        if not pa.types.is_primitive(kind.value_type):  # the others are arrays that were checked when they were made
            for at, item in enumerate(value):
                _check(item, kind.value_type, f"{where}[{at}]")
    else:
        _check_leaf(value, kind, where)


def _check_leaf(value: object, kind: pa.DataType, where: str) -> None:
    if pa.types.is_string(kind):
        _check_text(value, where)
    elif pa.types.is_floating(kind):
        if not isinstance(value, float) or not isfinite(value):
            raise RecordError(f"{where} is {value!r}, expected a finite float; leave it out (None) when it is unknown")
    elif pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise RecordError(f"{where} is {value!r}, expected an integer of {kind.bit_width} bits")
    elif not isinstance(value, bool):
        raise RecordError(f"{where} is {value!r}, expected a boolean")


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str):
        raise RecordError(f"{where} is {value!r}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as cause:
        raise RecordError(f"{where} is not text in UTF-8: {cause}; decode bytes with errors='replace'") from cause
