"""Two hidden numbers, a calculator and an answer: a task for JSON tool calls."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.spec import Capabilities, Reply, Snapshot, Task
from kifu.envs.splits import in_share, split_range
from kifu.envs.tools import tool
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict

ITEMS = ("apples", "pens", "cups", "books", "eggs", "nails", "lamps", "coins")
NEW_ITEMS = ("chairs", "stones", "hats", "plums", "forks", "bells", "ropes", "seeds")
SIGNS: Mapping[str, str] = {"times": "*", "plus": "+", "minus": "-"}
TURNS = 5
"""Turns the task allows; the shortest success takes 4."""

_EXPRESSION = re.compile(r"\s*(\d{1,5})\s*([*+-])\s*(\d{1,5})\s*", re.ASCII)


def calculate(expression: str) -> int | None:
    """Two whole numbers of at most five digits and one sign; None for anything else.

    >>> calculate("40*59")
    2360
    """
    found = _EXPRESSION.fullmatch(expression)
    if found is None:
        return None
    left, sign, right = int(found[1]), found[2], int(found[3])
    return {"*": left * right, "+": left + right, "-": left - right}[sign]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    """The hidden numbers, and what has happened so far."""

    first: str
    second: str
    numbers: tuple[int, int]
    operation: str
    turns: int = 0
    answer: str | None = None
    invalid: int = 0
    stop: str | None = None

    @property
    def result(self) -> int:
        """What the answer must be."""
        found = calculate(f"{self.numbers[0]}{SIGNS[self.operation]}{self.numbers[1]}")
        assert found is not None, "the numbers have at most five digits"
        return found


def _gold(task: Task) -> str:
    """The result."""
    numbers, operation = task.data["numbers"], str(task.data["operation"])
    assert isinstance(numbers, list)
    return str(calculate(f"{numbers[0]}{SIGNS[operation]}{numbers[1]}"))


class CalcTools(Environment):
    """Look up two numbers, calculate, answer. Every tool takes one string called arg."""

    id: ClassVar[str] = "calc_tools"
    version: ClassVar[str] = "2"
    capabilities: ClassVar[Capabilities] = Capabilities()
    instructions: ClassVar[str] = (
        'Use tools. Call get(name), calc(expr) or answer(value) as JSON, for example {"tool":"calc","arg":"12*7"}.'
    )
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "two things, a hidden number from 12 to 99 for each, and times, plus or minus; drawn "
        "from the task's seed",
        "observations": "the question, then one line per call",
        "hidden": "the two numbers, until each is looked up",
        "actions": "get a number by name, calc an expression of two whole numbers, answer with a value",
        "reset, versions, seeds": "the task's seed fixes numbers and question; the world has no other randomness",
        "success": "the answer equals the result",
        "failure": "another answer",
        "end": f"an answer, or {TURNS} turns without one (task budget, a terminal failure)",
        "reward": "verdict at the end: 1 for the right answer, else 0; no components",
        "irreversible": "answering",
    }

    gold_answer = staticmethod(_gold)

    def __init__(self) -> None:
        self.sheet = _Sheet(first=ITEMS[0], second=ITEMS[1], numbers=(12, 12), operation="plus")

    def reset(self, task: Task, seed: int) -> str:
        """Hide the numbers and ask the question."""
        first, second, operation, numbers = (
            task.data.get(name) for name in ("first", "second", "operation", "numbers")
        )
        whole = isinstance(numbers, list) and len(numbers) == 2 and all(isinstance(item, int) for item in numbers)
        if not isinstance(numbers, list) or not whole or operation not in SIGNS:
            raise UsageError(
                f"calc_tools task `{task.id}`: found data {dict(task.data)}, expected first, second, operation (times, "
                "plus or minus) and two whole numbers; take tasks from CalcTools.tasks(split, seed)"
            )
        pair = (int(str(numbers[0])), int(str(numbers[1])))
        self.sheet = _Sheet(first=str(first), second=str(second), numbers=pair, operation=str(operation))
        return f"What is the number of {first} {operation} the number of {second}?"

    @tool
    def get(self, arg: str) -> Reply:
        """Look a number up.

        Args:
            arg: name of the thing.
        """
        known = dict(zip((self.sheet.first, self.sheet.second), self.sheet.numbers, strict=True))
        if arg not in known:
            return self._turn("Error: unknown name.", error=f"unknown name {arg!r}")
        return self._turn(f"{arg} = {known[arg]}")

    @tool
    def calc(self, arg: str) -> Reply:
        """Calculate with two whole numbers.

        Args:
            arg: the expression, e.g. 12*7.
        """
        result = calculate(arg)
        if result is None:
            return self._turn("Error: bad expression.", error=f"bad expression {arg!r}")
        return self._turn(str(result))

    @tool
    def answer(self, arg: str) -> Reply:
        """Answer the question.

        Args:
            arg: the value.
        """
        right = arg.strip() == str(self.sheet.result)
        return self._turn("", stop=StopReason.SUCCESS if right else StopReason.FAILURE, answer=arg)

    def invalid(self, error: str) -> Reply:
        """Anything else costs a turn."""
        self.sheet = replace(self.sheet, invalid=self.sheet.invalid + 1)
        return self._turn("Error: bad call.", error=error)

    def _turn(
        self, text: str, *, stop: StopReason | None = None, answer: str | None = None, error: str | None = None
    ) -> Reply:
        sheet = self.sheet
        if sheet.stop is not None:
            raise UsageError(f"the episode ended with {sheet.stop}; reset before the next call")
        if stop is None and sheet.turns + 1 >= TURNS:
            stop = StopReason.TASK_BUDGET
        self.sheet = replace(sheet, turns=sheet.turns + 1, answer=answer, stop=stop)
        return Reply(text=text, stop=stop, error=error)

    def verify(self) -> Verdict:
        """Success is the right answer given with `answer`; saying it in prose is none."""
        given = self.sheet.answer
        right = given is not None and given.strip() == str(self.sheet.result)
        return Verdict(
            success=right,
            world_state_checks={"answered": given is not None, "right": right},
            invalid_actions=self.sheet.invalid,
            verifier="calc_tools/1",
        )

    def snapshot(self) -> Snapshot:
        """The sheet."""
        return {**asdict(self.sheet), "numbers": list(self.sheet.numbers)}

    def restore(self, ref: Snapshot) -> None:
        """Take back a sheet."""
        if not isinstance(ref, dict) or set(ref) != set(asdict(self.sheet)) or not isinstance(ref["numbers"], list):
            raise UsageError(f"calc_tools: found snapshot {ref!r}, expected {', '.join(asdict(self.sheet))}")
        self.sheet = _Sheet(**{**ref, "numbers": tuple(ref["numbers"])})  # type: ignore[arg-type]

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Questions of a split from ``seed`` on; none stands in two splits. The family is the operation."""
        for at in split_range(split, seed):
            yield _task(split, at)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Look both up, calculate, answer; with noise, it gives up before the calculation.

        Where noise is likely, an imitator's greedy play fails every time and its samples succeed at times: greedy play
        has all to learn, and reinforcement something to begin with.
        """
        rng = random.Random(f"calc_tools/{task.id}/{seed}")
        world = cls()
        world.reset(task, seed)
        calls: list[ToolCall] = []
        while world.sheet.stop is None:
            call = _expert(world.sheet, calls)
            if call.name == "calc" and rng.random() < noise:
                call = _call("answer", "unknown")
            calls.append(call)
            world.step(call)
        return tuple(calls)


def _task(split: str, seed: int) -> Task:
    rng = random.Random(seed)
    while True:
        first, second = rng.sample(NEW_ITEMS if split == "new_vocabulary" else ITEMS, 2)
        numbers = [rng.randint(12, 99), rng.randint(12, 99)]
        operation = rng.choice(list(SIGNS))
        if in_share(split, f"{first}/{second}/{numbers}/{operation}"):
            data: dict[str, Json] = {
                "first": first,
                "second": second,
                "numbers": [*numbers],
                "operation": operation,
            }
            return Task(id=f"calc_tools/{seed}", seed=seed, family=operation, split=split, data=data)


def _call(name: str, arg: str) -> ToolCall:
    return ToolCall(name=name, arguments={"arg": arg})


def _expert(sheet: _Sheet, done: Sequence[ToolCall]) -> ToolCall:
    expression = f"{sheet.numbers[0]}{SIGNS[sheet.operation]}{sheet.numbers[1]}"
    plan = (_call("get", sheet.first), _call("get", sheet.second), _call("calc", expression))
    missing = [call for call in plan if call not in done]
    return missing[0] if missing else _call("answer", str(sheet.result))
