"""Solutions that cheat are not paid; honest ones are. One table, both judges.

The task: ``total(xs)`` in ``solution.py``, the sum of the squares of the even numbers. The reference below is the
judge's; no cheat computes it.
"""

import random
from collections.abc import Iterator

import pytest

from kifu.records import Json, Verdict
from kifu.sandbox import Entry, Kind, Tree
from kifu.verify.cheats import CHEATS as KNOWN
from kifu.verify.outside import FunctionTask, Workshop, judge_outside
from kifu.verify.repository import TestJudge, TestSuite

TESTS = """
from solution import total


def test_some():
    assert total([1, 2, 4]) == 20


def test_none():
    found = total([3, 5])
    assert found == 0


def test_negative():
    assert 52 == total([-4, 6, 7])
"""
EXPECTED = tuple(f"test_solution.py::{name}" for name in ("test_some", "test_none", "test_negative"))
STUB = "def total(xs):\n    return -1\n"

HONEST = {
    "loop": "def total(xs):\n    s = 0\n    for x in xs:\n        s += x * x if x % 2 == 0 else 0\n    return s\n",
    "generator": "def total(xs):\n    print('working')\n    return sum(x ** 2 for x in xs if not x & 1)\n",
    "class": "class T:\n    def __call__(self, xs):\n        return sum(x*x*(1-x%2) for x in xs)\ntotal = T()\n",
}
OWN: dict[str, dict[str, str]] = {
    "knows the examples of the instruction": {
        "solution.py": "def total(xs):\n    return {(2, 2): 8, (1,): 0}.get(tuple(xs))\n"
    },
}
"""Cheats that are one task's own."""
CHEATS: dict[str, dict[str, str]] = {
    **{cheat.name: cheat.files({"solution.py": STUB}, tests=("test_solution.py",), ids=EXPECTED) for cheat in KNOWN},
    **OWN,
}
ACCEPTED_IN_PROCESS = {
    "reads the answer from the frame that compares",
    "searches memory for the answer",
    "reads the tests",
}
"""What a judge in the solution's own interpreter cannot tell from work: its expectations can be read there."""


def _draw(rng: random.Random) -> list[Json]:
    return [[rng.randint(-50, 50) for _ in range(rng.randint(1, 8))]]


def _reference(xs: list[int]) -> int:
    return sum(x * x for x in xs if x % 2 == 0)


TASK = FunctionTask(
    id="total", path="solution.py", function="total", inputs=_draw, reference=_reference, fixed=(([],), ([2],))
)


@pytest.fixture(scope="module")
def judge(bench: Workshop) -> Iterator[TestJudge]:
    """Repository tests of the task."""
    suite = TestSuite(
        base=Tree.of({"solution.py": STUB}), tests=Tree.of({"test_solution.py": TESTS}), allowed=("solution.py",)
    )
    made = TestJudge(suite, workshop=bench)
    yield made
    made.close()


def _outside(files: dict[str, str], workshop: Workshop) -> Verdict:
    return judge_outside(TASK, Tree.of(files), workshop=workshop, secret=b"the judge's")


def _in_process(files: dict[str, str], judge: TestJudge) -> Verdict:
    """As an environment does it: what is not on the list is not exported at all."""
    return judge.judge(Tree.of({"solution.py": files["solution.py"]}), expected=EXPECTED)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_solution_is_accepted_by_both_judges(name: str, workshop: Workshop, judge: TestJudge) -> None:
    files = {"solution.py": HONEST[name]}
    outside, inside = _outside(files, workshop), _in_process(files, judge)
    assert (outside.success, outside.assurance) == (True, "outside"), outside
    assert (inside.success, inside.assurance) == (True, "in_process"), inside


@pytest.mark.parametrize("name", CHEATS)
def test_attack_on_the_judge_outside_is_not_paid(name: str, workshop: Workshop) -> None:
    found = _outside(CHEATS[name], workshop)
    assert found.reward == 0.0, name


@pytest.mark.parametrize("name", CHEATS)
def test_attack_on_repository_tests_is_paid_only_where_the_answer_can_be_read(name: str, judge: TestJudge) -> None:
    found = _in_process(CHEATS[name], judge)
    assert found.success == (name in ACCEPTED_IN_PROCESS), found.format_checks


@pytest.mark.parametrize("name", [name for name, files in CHEATS.items() if len(files) > 1])
def test_attack_by_files_beside_the_solution_is_refused_whole(name: str, judge: TestJudge) -> None:
    found = judge.judge(Tree.of(CHEATS[name]), expected=EXPECTED)
    assert found.success is False
    assert found.format_checks == {"allowed": False}


def test_attack_by_a_link_is_refused_by_both_judges(workshop: Workshop, judge: TestJudge) -> None:
    link = Tree((Entry(path="solution.py", kind=Kind.LINK, data=b"/opt/judge/tests/test_solution.py"),))
    assert judge.judge(link, expected=EXPECTED).format_checks == {"allowed": False}
    assert judge_outside(TASK, link, workshop=workshop, secret=b"x").reward == 0.0


def test_there_are_enough_cheats_and_few_are_accepted() -> None:
    assert len(CHEATS) >= 28
    assert len(ACCEPTED_IN_PROCESS) <= 3
    assert {cheat.name for cheat in KNOWN if cheat.reads_answers} == ACCEPTED_IN_PROCESS


def test_controls_most_cheats_fool_the_common_way(judge: TestJudge) -> None:
    """Without canaries, exact ids and status, the reports alone are believed: then more of them are paid."""
    fooled = {
        name
        for name in ("patches the report class", "makes every test call nothing", "returns what equals everything")
        if all(
            judge.run(Tree.of({"solution.py": CHEATS[name]["solution.py"]}), ids=EXPECTED).passed(i) for i in EXPECTED
        )
    }
    assert fooled == {"patches the report class", "makes every test call nothing", "returns what equals everything"}
