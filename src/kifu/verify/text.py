"""Verifiers of a final text. They judge words, not the world, and say so: their assurance is ``text``."""

import hashlib
import re
from collections.abc import Sequence
from decimal import Decimal

from kifu.errors import UsageError
from kifu.records import Verdict

_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")


def squeeze(text: str) -> str:
    """Lower case, single spaces, no surrounding spaces and no final full stop.

    >>> squeeze("  The  Answer. ")
    'the answer'
    """
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def exact(answer: str, expected: str | Sequence[str]) -> Verdict:
    """Equal to one of the expected texts after `squeeze`."""
    options = [expected] if isinstance(expected, str) else list(expected)
    return _verdict(answer, squeeze(answer) in {squeeze(option) for option in options}, "exact/1")


def find_number(text: str) -> Decimal | None:
    """The last number in a text: thousands separators, signs, decimals and exponents are understood.

    >>> find_number("so 3 boxes of 12 make 1,036.50 in all")
    Decimal('1036.50')
    """
    found = [match[0] for match in _NUMBER.finditer(text) if any(char.isdigit() for char in match[0])]
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def numeric(answer: str, expected: str | int | float, *, tolerance: float = 0.0) -> Verdict:
    """The last number of the answer is the expected one, within ``tolerance`` (absolute).

    Raises:
        UsageError: the expected answer holds no number.
    """
    goal = find_number(str(expected))
    if goal is None:
        raise UsageError(f"numeric: the expected answer is {expected!r}, which holds no number")
    found = find_number(answer)
    success = found is not None and abs(found - goal) <= Decimal(str(tolerance))
    return _verdict(answer, success, "numeric/1", number_found=found is not None)


def regex(answer: str, pattern: str) -> Verdict:
    """The whole answer, without surrounding space, matches ``pattern``.

    Raises:
        UsageError: the pattern is not a regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"regex: {pattern!r} is not a regular expression: {error}") from error
    return _verdict(answer, compiled.fullmatch(answer.strip()) is not None, "regex/1")


def _verdict(answer: str, success: bool, verifier: str, **formats: bool) -> Verdict:
    return Verdict(
        success=success,
        format_checks={"not_empty": bool(answer.strip()), **formats},
        assurance="text",
        verifier=verifier,
        evidence=hashlib.sha256(answer.encode("utf-8", "backslashreplace")).hexdigest(),
    )
