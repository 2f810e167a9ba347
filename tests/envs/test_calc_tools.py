"""The calculator task, call by call."""

from itertools import islice

import pytest

from kifu.envs import Reply, Task
from kifu.envs.suites.calc_tools import CalcTools, calculate
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall

TASK = Task(id="q", data={"first": "pens", "second": "cups", "operation": "minus", "numbers": [40, 59]})


def play(*steps: tuple[str, str]) -> tuple[CalcTools, list[Reply]]:
    world = CalcTools()
    world.reset(TASK, 0)
    replies = []
    for name, arg in steps:
        reply = world.step(ToolCall(name=name, arguments={"arg": arg}))
        assert isinstance(reply, Reply)
        replies.append(reply)
    return world, replies


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("40*59", 2360),
        (" 7 - 10 ", -3),
        ("007+1", 8),
        ("99999*99999", 9999800001),
        ("1+2+3", None),
        ("2**9", None),
        ("100000+1", None),
        ("1/2", None),
        ("-1+2", None),
        ("__import__('os')", None),
        ("", None),
        ("1+1\n+1", None),
        ("\u0663+\u0664", None),
    ],
)
def test_two_numbers_and_a_sign_are_calculated_and_nothing_else_is(expression: str, value: int | None) -> None:
    assert calculate(expression) == value


def test_the_question_names_the_things_and_hides_the_numbers() -> None:
    assert CalcTools().reset(TASK, 0) == "What is the number of pens minus the number of cups?"


def test_look_up_calculate_and_answer() -> None:
    world, replies = play(("get", "pens"), ("get", "cups"), ("calc", "40-59"), ("answer", " -19"))
    assert [reply.text for reply in replies] == ["pens = 40", "cups = 59", "-19", ""]
    assert replies[-1].stop is StopReason.SUCCESS
    assert world.verify().reward == 1.0


@pytest.mark.parametrize(
    ("steps", "text", "stop"),
    [
        ((("get", "eggs"),), "Error: unknown name.", None),
        ((("calc", "40-"),), "Error: bad expression.", None),
        ((("answer", "19"),), "", StopReason.FAILURE),
        ((("get", "pens"),) * 5, "pens = 40", StopReason.TASK_BUDGET),
    ],
)
def test_what_goes_wrong(steps: tuple[tuple[str, str], ...], text: str, stop: StopReason | None) -> None:
    world, replies = play(*steps)
    assert (replies[-1].text, replies[-1].stop) == (text, stop)
    assert world.verify().reward == 0.0


def test_an_error_of_a_tool_is_marked_and_the_episode_goes_on() -> None:
    _, replies = play(("get", "eggs"), ("get", "pens"))
    assert replies[0].error == "unknown name 'eggs'"
    assert replies[1].error is None


def test_the_right_value_in_prose_earns_nothing() -> None:
    world, _ = play(("get", "pens"))
    world.answered("The answer is -19.")
    assert world.verify().reward == 0.0


def test_every_tool_takes_one_string_called_arg() -> None:
    for spec in CalcTools().tools():
        assert spec.parameters["required"] == ["arg"]
        assert spec.parameters["properties"]["arg"]["type"] == "string"  # type: ignore[index,call-overload]


def test_results_match_pythons_arithmetic_over_the_split() -> None:
    signs = {"times": int.__mul__, "plus": int.__add__, "minus": int.__sub__}
    for task in islice(CalcTools.tasks("train", 0), 100):
        numbers = task.data["numbers"]
        assert isinstance(numbers, list)
        one, two = numbers
        answer = CalcTools.demonstrate(task)[-1]
        assert isinstance(answer, ToolCall)
        assert answer.arguments["arg"] == str(signs[task.family](one, two))  # type: ignore[arg-type]


def test_a_malformed_task_is_refused() -> None:
    with pytest.raises(UsageError, match="two whole numbers"):
        CalcTools().reset(Task(id="t", data={"first": "a", "second": "b", "operation": "plus", "numbers": [1]}), 0)


def test_noisy_traces_leave_the_expert_before_the_calculation_and_nowhere_else() -> None:
    """What they show of format and copying is right; when to go on is left to be learned."""
    gave_up = 0
    for task in islice(CalcTools.tasks("train", 0), 400):
        expert, noisy = (CalcTools.demonstrate(task, seed=task.seed, noise=noise) for noise in (0.0, 0.8))
        world = CalcTools()
        world.reset(task, task.seed)
        for call in noisy:
            assert isinstance(call, ToolCall)
            world.step(call)
        if noisy == expert:
            assert world.verify().success
        else:
            assert noisy == (*expert[:2], ToolCall(name="answer", arguments={"arg": "unknown"}))
            assert not world.verify().success
            gave_up += 1
    assert abs(gave_up / 400 - 0.8) < 3 * (0.8 * 0.2 / 400) ** 0.5
