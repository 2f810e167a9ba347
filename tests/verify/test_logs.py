"""Logs of test runners are read as their own authors read them; a forged line cannot undo a failure."""

import json
import os
from pathlib import Path

import pytest

from kifu.errors import ArgumentError
from kifu.verify.logs import Style, read_log

DJANGO = """\
test_plain (app.tests.T) ... ok
test_told (app.tests.T)
A docstring that says what is tested. ... ok
test_loud (app.tests.T) ... Testing against Django installed in '/box/django'
ok
test_bad (app.tests.T) ... FAIL
test_worse (app.tests.T) ... ERROR
test_left (app.tests.T) ... skipped 'no database'
test_known (app.tests.T) ... expected failure
test_surprise (app.tests.T) ... unexpected success

======================================================================
FAIL: test_late (app.tests.T)
"""
PYTEST = """\
tests/test_a.py::test_told PASSED                 [ 50%]
tests/test_a.py::test_left SKIPPED (not here)     [100%]
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two[a-b]
SKIPPED [1] tests/test_a.py:3: not here
XFAIL tests/test_a.py::test_known - reason
FAILED tests/test_a.py::test_three - AssertionError: assert 1 == 2
ERROR tests/test_a.py::test_four
"""
SYMPY = """\
sympy/core/tests/test_a.py[4]
test_one ok
test_two F
test_three E
test_four s
test_five ok                                                   [FAIL]

________________________________________________________________________________
________________ sympy/core/tests/test_a.py:test_two ________________
"""


@pytest.mark.parametrize(
    ("style", "text", "outcomes"),
    [
        (
            "unittest",
            DJANGO,
            {
                "test_plain (app.tests.T)": "passed",
                "A docstring that says what is tested.": "passed",
                "test_loud (app.tests.T)": "passed",
                "test_bad (app.tests.T)": "failed",
                "test_worse (app.tests.T)": "error",
                "test_left (app.tests.T)": "skipped",
                "test_known (app.tests.T)": "passed",
                "test_surprise (app.tests.T)": "failed",
                "test_late (app.tests.T)": "failed",
            },
        ),
        (
            "pytest",
            PYTEST,
            {
                "tests/test_a.py::test_told": "passed",
                "tests/test_a.py::test_left": "skipped",
                "tests/test_a.py::test_one": "passed",
                "tests/test_a.py::test_two[a-b]": "passed",
                "tests/test_a.py::test_known": "passed",
                "tests/test_a.py::test_three": "failed",
                "tests/test_a.py::test_four": "error",
            },
        ),
        (
            "sympy",
            SYMPY,
            {
                "test_one": "passed",
                "test_two": "failed",
                "test_three": "error",
                "test_four": "skipped",
                "test_five": "passed",
                "sympy/core/tests/test_a.py:test_two": "failed",
            },
        ),
    ],
)
def test_a_log_is_read_line_by_line(style: Style, text: str, outcomes: dict[str, str]) -> None:
    assert read_log(text, style) == outcomes


@pytest.mark.parametrize(
    ("style", "bad", "good"),
    [
        ("unittest", "test_a (m.T) ... FAIL", "test_a (m.T) ... ok"),
        ("pytest", "FAILED t.py::test_a - x", "PASSED t.py::test_a"),
        ("sympy", "test_a F", "test_a ok"),
    ],
)
def test_attack_by_a_forged_line_does_not_undo_a_failure(style: Style, bad: str, good: str) -> None:
    for lines in ((bad, good), (good, bad)):
        assert set(read_log("\n".join(lines) + "\n", style).values()) == {"failed"}


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(ArgumentError, match="no style `tap`"):
        read_log("", "tap")  # type: ignore[arg-type]


def test_real_logs_say_what_their_harness_reported() -> None:
    """SWE-smith kept, beside each log, the report its own harness made of it."""
    data = Path(os.environ.get("KIFU_TASK_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "swesmith"
    folder = data / "run_evaluation" / "getmoto__moto.694ce1f4.pr_7331"
    if not folder.is_dir():
        pytest.skip(f"no real task files at {data}; name their folder in KIFU_TASK_DATA")
    report = json.loads((folder / "report.json").read_text())
    found = read_log((folder / "test_output.txt").read_text(), "pytest")
    status = report["tests_status"]
    for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        assert {found.get(name) for name in status[kind]["success"]} <= {"passed"}
        assert "passed" not in {found.get(name) for name in status[kind]["failure"]}
    assert sum(len(status[kind]["success"]) for kind in status) > 0
