"""Values of foreign code as plain ones a record can hold; whatever cannot be meant is refused where it was made."""

from collections.abc import Mapping
from math import isfinite

import numpy as np

from kifu.errors import RecordError


def as_text(value: object, what: str) -> str:
    """Valid Unicode text.

    Raises:
        RecordError: anything else.
    """
    if not isinstance(value, str):
        raise _refused(value, what, "text")
    try:
        value.encode()
    except UnicodeEncodeError as cause:
        raise _refused(value, what, "text in UTF-8, without lone surrogates") from cause
    return value


def as_flag(value: object, what: str) -> bool:
    """A boolean, numpy's included.

    Raises:
        RecordError: anything else, numbers included.
    """
    if not isinstance(value, bool | np.bool_):
        raise _refused(value, what, "True or False")
    return bool(value)


def as_real(value: object, what: str) -> float:
    """A finite float, from any real number or boolean.

    Raises:
        RecordError: anything else.
    """
    try:
        number = float(value) if isinstance(value, int | float | np.integer | np.floating | np.bool_) else np.nan
    except OverflowError:
        number = np.inf
    if not isfinite(number):
        raise _refused(value, what, "a finite number")
    return number


def as_count(value: object, what: str) -> int:
    """An integer of 0 or more that a column of 32 bits holds.

    Raises:
        RecordError: anything else, booleans included.
    """
    number = as_whole(value, what)
    if number < 0:
        raise _refused(value, what, "0 or more")
    return number


def as_whole(value: object, what: str) -> int:
    """An integer that a column of 32 bits holds.

    Raises:
        RecordError: anything else, booleans included.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -(1 << 31) <= int(value) < 1 << 31:
        raise _refused(value, what, "an integer of 32 bits")
    return int(value)


def as_items(value: object, what: str) -> list[tuple[str, object]]:
    """The items of a mapping whose keys are text.

    Raises:
        RecordError: anything else.
    """
    if not isinstance(value, Mapping):
        raise _refused(value, what, "a mapping of names to values")
    return [(as_text(name, f"{what}, a name"), item) for name, item in value.items()]


def _refused(value: object, what: str, expected: str) -> RecordError:
    found = repr(value)[:100].encode("utf-8", "backslashreplace").decode()
    return RecordError(f"{what}: found {found}, expected {expected}")
