"""python_tool: the expression is judged on numbers nobody knew, the interpreter is a box, states come back."""

import re

import pytest

from kifu.envs import Task
from kifu.envs.suites.python_tool import FAMILIES, PythonExpression, PythonTool, calculated
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall


def _task(family: str = "linear", **changes: object) -> Task:
    data: dict[str, object] = {"family": family, "variable": "x", "a": 7, "b": 3, **changes}
    return Task(id="t", data=data)  # type: ignore[arg-type]


def _answered(expression: str, family: str = "linear") -> float | None:
    world = PythonTool()
    try:
        world.reset(_task(family), 0)
        world.step(ToolCall(name="answer", arguments={"arg": expression}))
        return world.verify().reward
    finally:
        world.close()


@pytest.mark.parametrize(
    ("family", "expression"),
    [
        ("times", "7*x"),
        ("linear", "3 + x * 7"),
        ("square", "x**2-3"),
        ("rest", "x - x//7*7"),
        ("digits", "3+sum(int(c) for c in str(x))"),
        ("multiples", "len(range(7, x+1, 7))"),
    ],
)
def test_any_right_expression_earns_the_reward(family: str, expression: str) -> None:
    assert _answered(expression, family) == 1.0


@pytest.mark.parametrize(
    "expression",
    [
        "x*7",
        "73",
        "float(x*7+3)",
        "str(x*7+3)",
        "x*7+3\nimport os",
        "x = 1",
        "",
        "__import__('os')._exit(0)",
        "type('E', (), {'__eq__': lambda s, o: True})()",
        "__import__('sys')._getframe(1).f_locals",
        "'" + "x" * 5000,
        "\ud800",
        "(" * 500,
        "1/0",
    ],
)
def test_attack_by_answer_is_a_wrong_answer(expression: str) -> None:
    assert _answered(expression) == 0.0


def test_the_interpreter_prints_keeps_files_and_reaches_nothing_else() -> None:
    world = PythonTool()
    world.reset(_task(), 0)
    first = world.python("open('n', 'w').write('41'); print('ü')")
    second = world.python("print(int(open('n').read()) + 1)")
    third = world.python("import socket; socket.create_connection(('127.0.0.1', 1))")
    world.close()
    assert (first.text.strip(), first.exit_status) == ("ü", 0)
    assert second.text.strip() == "42"
    assert third.exit_status == 1
    assert third.error == "exit"


def test_the_task_ends_after_its_turns_without_an_answer() -> None:
    world = PythonTool()
    world.reset(_task(), 0)
    replies = [world.calc("1+1") for _ in range(6)]
    verdict = world.verify()
    world.close()
    assert [reply.stop for reply in replies] == [None] * 5 + [StopReason.TASK_BUDGET]
    assert verdict.success is False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*(3+4)", 14),
        ("-7//2", -4),
        ("7%4", 3),
        ("1/2", None),
        ("2**9", None),
        ("1//0", None),
        ("x", None),
        ("(" * 80, None),
    ],
)
def test_the_calculator_knows_whole_numbers_only(text: str, value: int | None) -> None:
    assert calculated(text) == value


def test_every_family_appears_and_none_in_two_splits() -> None:
    seen: dict[str, set[str]] = {}
    for split, first in (("train", 0), ("held_out", 5_000_000)):
        tasks = [next(iter(PythonTool.tasks(split, first + at))) for at in range(300)]
        seen[split] = {str(dict(task.data)) for task in tasks}
        assert {task.family for task in tasks} == set(FAMILIES)
    assert not seen["train"] & seen["held_out"]


def test_a_task_of_another_environment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected family \(times"):
        PythonTool().reset(Task(id="t", data={"family": "no"}), 0)


def test_the_spelled_answer_takes_every_right_expression_and_little_else() -> None:
    world = PythonExpression()
    world.reset(_task(), 0)
    (spec,) = world.tools()
    pattern = str(spec.parameters["properties"]["arg"]["pattern"])  # type: ignore[index, call-overload]
    for family in FAMILIES.values():
        assert re.fullmatch(pattern[1:-1], family.gold.format(v="x", a=30, b=50))
    for other in ("__import__('os')", "x+", "x**3", "x+1+2+3", "x+100", ""):
        with pytest.raises(UsageError, match="expected a text of the pattern"):
            world.step(ToolCall(name="answer", arguments={"arg": other}))
    with pytest.raises(UsageError, match="no tool `python`"):
        world.step(ToolCall(name="python", arguments={"arg": "1"}))
    world.step(ToolCall(name="answer", arguments={"arg": "x*7+3"}))
    assert world.verify().reward == 1.0
    world.close()


def test_the_spelled_answers_are_demonstrated_in_one_turn() -> None:
    task = next(iter(PythonExpression.tasks("demonstration", 10_000_000)))
    (call,) = PythonExpression.demonstrate(task)
    world = PythonExpression()
    world.reset(task, 0)
    world.step(call)  # type: ignore[arg-type]  # a call, as the pattern asks for one
    assert world.verify().reward == 1.0
    world.close()
