"""The judge outside: what counts as the same value, what counts as an answer, whose fault a failure is."""

import random

import pytest

from kifu.errors import ArgumentError, VerifierFailure
from kifu.records import Json
from kifu.sandbox import Backend, BoxPolicy, Guarantee, NsBackend, Proof, Tree
from kifu.verify.outside import FunctionTask, Workshop, judge_outside, read_answers, same_value

GOOD = Tree.of({"s.py": "def f(x):\n    return {'a': [x, str(x)], 'b': x / 4}\n"})


def _inputs(rng: random.Random) -> list[Json]:
    return [rng.randint(0, 1000)]


def _task(**changes: object) -> FunctionTask:
    parts: dict[str, object] = {
        "id": "f",
        "path": "s.py",
        "function": "f",
        "inputs": _inputs,
        "reference": lambda x: {"a": (x, str(x)), "b": x / 4},
    }
    return FunctionTask(**{**parts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (True, 1, False),
        (0, False, False),
        (None, 0, False),
        ("1", 1, False),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        (0.1 + 0.2, 0.3, False),
    ],
)
def test_values_are_the_same_only_with_the_same_plain_types(found: Json, wanted: Json, same: bool) -> None:
    assert same_value({"case": 0, "value": found}, {"value": wanted}) is same


def test_a_tolerance_is_for_floating_point_numbers_alone() -> None:
    assert same_value({"value": [0.1 + 0.2]}, {"value": [0.3]}, tolerance=1e-9)
    assert not same_value({"value": 1}, {"value": 2}, tolerance=10.0)


def test_an_exception_is_an_answer() -> None:
    assert same_value({"case": 0, "raised": "ValueError"}, {"raised": "ValueError"})
    assert not same_value({"case": 0, "value": None}, {"raised": "ValueError"})


def test_attack_by_lines_that_are_no_answers_changes_none() -> None:
    """Repeated, foreign, negative and boolean numbers, other fields, no JSON, NaN, deep nesting."""
    lines = [
        b'{"case": 0, "value": 1}',
        b'{"case": 1, "value": 2}',
        b'{"case": 1, "value": 3}',
        b'{"case": true, "value": 9}',
        b'{"case": -1, "value": 9}',
        b'{"case": 2, "value": NaN}',
        b'{"case": 2, "value": 1, "verdict": "pass"}',
        b'{"case": 99, "value": 1}',
        b"[" * 100_000,
        b"\xff",
        b"success",
    ]
    assert read_answers(lines, count=3) == [{"case": 0, "value": 1}, None, None]


def test_a_right_function_is_right_and_its_case_count_is_as_asked(workshop: Workshop) -> None:
    found = judge_outside(_task(cases=5, fixed=((0,),)), GOOD, workshop=workshop, secret=b"s")
    assert found.success is True
    assert len(found.world_state_checks) == 6
    assert found.evidence == GOOD.digest


def test_one_wrong_case_is_a_failure(workshop: Workshop) -> None:
    nearly = Tree.of({"s.py": "def f(x):\n    return {'a': [x, str(x)], 'b': x / 4 if x else 1}\n"})
    found = judge_outside(_task(cases=2, fixed=((0,),)), nearly, workshop=workshop, secret=b"s")
    assert found.success is False
    assert found.world_state_checks["case 0"] is False


def test_the_same_solution_is_asked_the_same_and_another_one_otherwise(workshop: Workshop) -> None:
    asked: list[Json] = []

    def watching(x: int) -> Json:
        asked.append(x)
        return {"a": [x, str(x)], "b": x / 4}

    task = _task(cases=4, reference=watching)
    other = Tree.of({"s.py": GOOD.files["s.py"] + b"\n"})
    for files in (GOOD, GOOD, other):
        judge_outside(task, files, workshop=workshop, secret=b"s")
    first, again, changed = asked[:4], asked[4:8], asked[8:]
    assert first == again
    assert first != changed


class _Broken:
    """A back-end that cannot be had."""

    name = "broken"

    def prove(self) -> Proof:
        return Proof(backend="broken", held=frozenset(Guarantee) - {Guarantee.NET_NONE}, problem="")

    def open(self, policy: BoxPolicy) -> object:
        raise AssertionError("nothing is opened without its proof")

    def close(self) -> None:
        """Nothing."""


def test_a_judge_without_its_box_is_a_fault_and_no_reward() -> None:
    backend: Backend = _Broken()  # type: ignore[assignment]  # never opened
    with pytest.raises(VerifierFailure, match="net_none"):
        judge_outside(_task(), GOOD, workshop=Workshop(backend=backend), secret=b"s")


def test_a_judge_without_its_interpreter_is_a_fault_and_no_reward() -> None:
    backend = NsBackend(slot=4)
    try:
        with pytest.raises(VerifierFailure, match="could not begin"):
            judge_outside(
                _task(), GOOD, workshop=Workshop(backend=backend, interpreter="/usr/bin/python9"), secret=b"s"
            )
    finally:
        backend.close()


def test_a_task_without_cases_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ArgumentError, match="no case"):
        judge_outside(_task(cases=0), GOOD, workshop=workshop, secret=b"s")
