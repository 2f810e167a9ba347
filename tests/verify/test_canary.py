"""Canary tests fail by assertion whenever the code is honest."""

from typing import Any

import pytest

from kifu.verify.canary import canary_copy, canary_modules

SOURCE = '''
"""Doc."""
from __future__ import annotations

import unittest
from calc import add


@pytest.mark.parametrize("x", [1])
def test_left_out(x):
    assert add(x, 1) == 2


def helper():
    return 3


def test_right():
    assert add(1, 2) == helper()


def test_left():
    assert {"a": 3} == {"a": add(1, 2)}


def test_list():
    x = add(1, 2)
    assert [x] == [3]
    assert undefined == 3


class TestThings:
    size = 3

    def test_inside(self):
        assert add(1, 2) == self.size

    def test_other(self):
        add(1, 2)


class Case(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(add(1, 2), 3)

    def test_expected_first(self):
        self.assertEqual("3", str(add(1, 2)))
'''
NAMES = (
    "test_right",
    "test_left",
    "test_list",
    "TestThings::test_inside",
    "Case::test_equal",
    "Case::test_expected_first",
)


class _AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _outcomes(add: Any) -> dict[str, str]:  # noqa: ANN401
    """What each canary does when run by hand."""
    copied = canary_copy(SOURCE)
    assert copied is not None
    text, names = copied
    assert names == NAMES
    scope: dict[str, Any] = {"__name__": "copy", "add": add}
    exec(compile(text.replace("from calc import add\n", ""), "copy", "exec"), scope)
    found = {}
    for name in names:
        owner, _, method = name.rpartition("::")
        call = scope[name] if not owner else getattr(scope[owner](*([method] if owner == "Case" else [])), method)
        try:
            call()
            found[name] = "passed"
        except Exception as error:
            found[name] = type(error).__name__
    return found


def test_honest_code_fails_every_canary_by_assertion() -> None:
    assert set(_outcomes(lambda a, b: a + b).values()) == {"AssertionError"}


def test_what_equals_everything_passes_canaries_and_is_found() -> None:
    found = _outcomes(lambda a, b: _AlwaysEqual())
    assert [name for name, outcome in found.items() if outcome == "passed"] == [
        "test_right",
        "test_left",
        "test_list",
        "TestThings::test_inside",
        "Case::test_equal",
    ]


@pytest.mark.parametrize(
    "source", ["", "x = (", "def test_a():\n    print(1)\n", "def test_a(x):\n    for y in x:\n        assert y == 1\n"]
)
def test_where_nothing_can_be_spoiled_there_is_no_canary(source: str) -> None:
    assert canary_copy(source) is None


def test_names_follow_from_the_secret_and_lie_beside_the_tests() -> None:
    tests = {
        "tests/test_a.py": b"def test_x():\n    assert 1 == 1\n",
        "tests/helper.py": b"def test_x():\n    assert 1 == 1\n",
    }
    first, ids = canary_modules(tests, secret=b"one")
    second, _ = canary_modules(tests, secret=b"two")
    (name,) = first
    assert name.startswith("tests/test_")
    assert ids == [f"{name}::test_x"]
    assert set(first) != set(second)
