r"""What test runners print, as outcomes by id. Printed text can be forged: a judge adds what forging cannot know.

>>> read_log("test_a (m.T) ... ok\ntest_b (m.T) ... FAIL\n", "unittest")
{'test_a (m.T)': 'passed', 'test_b (m.T)': 'failed'}
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

from kifu.errors import ArgumentError, nearest

Style: TypeAlias = Literal["pytest", "unittest", "sympy"]
_RANK = ("skipped", "passed", "failed", "error")
"""Of two outcomes of one id the later one here counts."""
_UNITTEST_END = re.compile(r"\s*(ok|FAIL|ERROR|expected failure|unexpected success|skipped\b.*)")
_UNITTEST = {"ok": "passed", "FAIL": "failed", "ERROR": "error"}
_LATE = {**_UNITTEST, "expected failure": "passed", "unexpected success": "failed"}
_PYTEST = {"PASSED": "passed", "XFAIL": "passed", "FAILED": "failed", "XPASS": "failed", "ERROR": "error"}
_PYTEST_TOLD = re.compile(r"(\S+::\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_SYMPY = {"ok": "passed", "F": "failed", "E": "error", "X": "failed", "f": "passed", "s": "skipped", "w": "skipped"}
_SYMPY_TAIL = re.compile(r"\s+\[(OK|FAIL)\]$")
_SYMPY_HEAD = re.compile(r"_+ (\S+\.py:\S+) _+")


def read_log(text: str, style: Style) -> dict[str, str]:
    """Id to ``passed``, ``failed``, ``error`` or ``skipped``; the worst, where a log says several.

    An expected failure passes, a test that passes against expectation fails.

    Args:
        text: everything the runner printed.
        style: ``pytest`` with its short summary of all tests (``-rA``) or one line each (``-v``), ``unittest`` at
            verbosity 2 (Django's runner as well), or ``sympy`` in its verbose mode.
    """
    if style not in _READERS:
        raise ArgumentError(f"log of tests: no style `{style}`; {nearest(style, list(_READERS))}")
    found: dict[str, str] = {}
    for name, outcome in _READERS[style](text.split("\n")):
        if name and (name not in found or _RANK.index(outcome) > _RANK.index(found[name])):
            found[name] = outcome
    return found


def _unittest(lines: list[str]) -> Iterator[tuple[str, str]]:
    begun: str | None = None
    for line in map(str.strip, lines):
        head, marks, tail = line.rpartition(" ... ")
        if marks and (said := _UNITTEST_END.fullmatch(tail)):
            yield head, _LATE.get(said[1], "skipped")
            begun = None
        elif marks:
            begun = line.partition(" ... ")[0]
        elif begun is not None and line in _UNITTEST:  # the test wrote something of its own in between
            yield begun, _UNITTEST[line]
            begun = None
        elif line.startswith(("FAIL: ", "ERROR: ")):
            word, _, name = line.partition(": ")
            yield name, _UNITTEST[word]


def _pytest(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        word, _, rest = line.partition(" ")
        name = rest.split()[0] if rest.split() else ""
        if word in _PYTEST and name:
            yield name, _PYTEST[word]
        elif told := _PYTEST_TOLD.match(line):
            yield told[1], _PYTEST.get(told[2], "skipped")
        elif word == "SKIPPED" and name and not name.startswith("["):
            yield name, "skipped"


def _sympy(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in map(str.strip, lines):
        name, _, end = _SYMPY_TAIL.sub("", line).rpartition(" ")
        if headed := _SYMPY_HEAD.fullmatch(line):
            yield headed[1], "failed"
        elif name.startswith("test_") and end in _SYMPY:
            yield name.split()[0], _SYMPY[end]


_READERS: Mapping[str, Callable[[list[str]], Iterator[tuple[str, str]]]] = {
    "pytest": _pytest,
    "unittest": _unittest,
    "sympy": _sympy,
}
