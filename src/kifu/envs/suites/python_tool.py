"""Write one Python expression that computes what is asked; a code interpreter and a calculator help."""

import ast
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kifu.envs.boxed import BoxedEnvironment, Sheet, judge_workshop
from kifu.envs.spec import Capabilities, Reply, Task, ToolSpec
from kifu.envs.splits import in_share, split_range
from kifu.envs.tools import class_tools, tool, with_pattern
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict
from kifu.sandbox import Limits, Policy, Reason, Tree, python
from kifu.verify import FunctionTask, judge_outside

TURNS = 6
"""Turns the task allows."""
_CASES = 10
_SECRET = b"python_tool: drawn after the answer, from the answer"
_SAFE = re.compile(r"[0-9+\-*/%() ]{1,80}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """One sort of question: how it is put, what is right, an expression that does it."""

    text: str
    right: Callable[[int, int, int], int]
    gold: str


FAMILIES: Mapping[str, _Family] = {
    "times": _Family(text="{v} times {a}", right=lambda v, a, b: v * a, gold="{v}*{a}"),
    "linear": _Family(text="{v} times {a} plus {b}", right=lambda v, a, b: v * a + b, gold="{v}*{a}+{b}"),
    "square": _Family(text="the square of {v} minus {b}", right=lambda v, a, b: v * v - b, gold="{v}*{v}-{b}"),
    "rest": _Family(text="the remainder of {v} divided by {a}", right=lambda v, a, b: v % a, gold="{v}%{a}"),
    "digits": _Family(
        text="the sum of the digits of {v} plus {b}",
        right=lambda v, a, b: sum(map(int, str(v))) + b,
        gold="sum(map(int,str({v})))+{b}",
    ),
    "multiples": _Family(
        text="how many of the numbers from 1 to {v} are multiples of {a}",
        right=lambda v, a, b: v // a,
        gold="{v}//{a}",
    ),
}
"""From the easiest on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet(Sheet):
    """What has happened so far."""

    answer: str | None = None


class PythonTool(BoxedEnvironment):
    """Answer with one Python expression; it is tried on numbers drawn after it was written."""

    id: ClassVar[str] = "python_tool"
    capabilities: ClassVar[Capabilities] = Capabilities(verify="program", effects=True)
    instructions: ClassVar[str] = (
        'Use tools. Call python(code), calc(expr) or answer(expr) as JSON, for example {"tool":"answer","arg":"x+1"}. '
        "The answer is one Python expression of the named variable."
    )
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": f"one of {len(FAMILIES)} sorts of question with two numbers, drawn from the task's seed",
        "observations": "the question, then what a call printed or computed",
        "hidden": "the numbers the answer is tried on",
        "actions": "run a Python program in a box, calculate, answer with an expression",
        "reset, versions, seeds": "the task's seed fixes the question; an answer fixes the numbers it is tried on",
        "success": f"the expression is right for all of {_CASES} numbers",
        "failure": "it is wrong for one, or is no expression",
        "end": f"an answer, or {TURNS} turns without one (task budget, a terminal failure)",
        "reward": "verdict at the end: 1 or 0, judged outside of the box it runs in; no components",
        "irreversible": "answering",
    }

    turns: ClassVar[int] = TURNS
    sheet_type: ClassVar[type[Sheet]] = _Sheet

    def __init__(self) -> None:
        super().__init__()
        self._question: tuple[str, str, int, int] = ("times", "x", 2, 1)
        self._verdicts: dict[str, Verdict] = {}

    def reset(self, task: Task, seed: int) -> str:
        """Open a box and ask."""
        family, variable, a, b = (task.data.get(name) for name in ("family", "variable", "a", "b"))
        known = isinstance(family, str) and family in FAMILIES and isinstance(variable, str) and variable.isidentifier()
        if not known or not isinstance(a, int) or not isinstance(b, int):
            raise UsageError(
                f"python_tool task `{task.id}`: found data {dict(task.data)}, expected family ({', '.join(FAMILIES)}), "
                "variable and whole numbers a and b; take tasks from PythonTool.tasks(split, seed)"
            )
        self.open_box(_POLICY)
        self._question, self._verdicts = (str(family), str(variable), a, b), {}
        return f"Write an expression for {FAMILIES[str(family)].text.format(v=variable, a=a, b=b)}."

    @tool
    def python(self, arg: str) -> Reply:
        """Run a Python program and see what it prints.

        Args:
            arg: the program.
        """
        result = self.box.call("python", {"code": arg})
        if result.reason is Reason.DENIED:
            return self.turn(result.text, error=result.text)
        return self.turn(result.text, exit_status=result.code, error=None if result.is_ok else str(result.reason))

    @tool
    def calc(self, arg: str) -> Reply:
        """Calculate with whole numbers.

        Args:
            arg: an expression of numbers, + - * // % and parentheses.
        """
        found = calculated(arg)
        if found is None:
            return self.turn("Error: bad expression.", error=f"bad expression {arg[:80]!r}")
        return self.turn(str(found))

    @tool
    def answer(self, arg: str) -> Reply:
        """Answer with one Python expression.

        Args:
            arg: the expression, e.g. x*2+1.
        """
        right = self._judged(arg).success
        reply = self.turn("", stop=StopReason.SUCCESS if right else StopReason.FAILURE)
        self.note(answer=arg)
        return reply

    def verify(self) -> Verdict:
        """Success is a right expression given with `answer`."""
        assert isinstance(self.sheet, _Sheet)
        if self.sheet.answer is None:
            return Verdict(success=False, world_state_checks={"answered": False}, verifier="python_tool/1")
        return replace(self._judged(self.sheet.answer), invalid_actions=self.sheet.invalid)

    def _judged(self, expression: str) -> Verdict:
        if expression not in self._verdicts:
            self._verdicts[expression] = _judge(expression, self._question)
        return self._verdicts[expression]

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Questions of a split from ``seed`` on; none stands in two splits."""
        for at in split_range(split, seed):
            yield _task(split, at)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Try the expression on a number, then answer; with noise, answer something else."""
        family, a, b = FAMILIES[str(task.data["family"])], task.data["a"], task.data["b"]
        gold = family.gold.format(v=task.data["variable"], a=a, b=b)
        rng = random.Random(f"python_tool/{task.id}/{seed}")
        trial = family.gold.format(v=17, a=a, b=b)
        if rng.random() < noise:
            return _call("calc", f"{rng.randint(1, 99)}*{a}"), _call("answer", f"{task.data['variable']}+{b}+{b}+1")
        return _call("python", f"print({trial})"), _call("answer", gold)


_TERM = r"([0-9]{1,2}|[a-z]|sum\(map\(int,str\([a-z]\)\)\))"
EXPRESSION = rf"^{_TERM}((\+|-|\*|//|%){_TERM}){{0,2}}$"
"""Of one to three terms: numbers, the variable, the sum of its digits."""


class PythonExpression(PythonTool):
    """The same questions with one tool: an answer of a few terms, which a grammar can spell."""

    id: ClassVar[str] = "python_expression"
    instructions: ClassVar[str] = (
        'Answer with one Python expression of the named variable, as JSON, for example {"tool":"answer","arg":"x+1"}.'
    )
    facts: ClassVar[Mapping[str, str]] = {
        **PythonTool.facts,
        "observations": "the question",
        "actions": "answer with an expression of one to three terms",
        "end": f"an answer, or {TURNS} turns without one (task budget, a terminal failure)",
    }

    def tools(self) -> tuple[ToolSpec, ...]:
        """The answer alone."""
        return tuple(with_pattern(spec, "arg", EXPRESSION) for spec in class_tools(type(self)) if spec.name == "answer")

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """The right expression; with noise, another."""
        return super().demonstrate(task, seed=seed, noise=noise)[-1:]


def calculated(expression: str) -> int | None:
    """A whole number from numbers, + - * // % and parentheses; None for anything else.

    >>> calculated("(3+4)*5%8")
    3
    """
    if not _SAFE.fullmatch(expression):
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _value(left) // _value(right)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _value(left) % _value(right)
        case _:
            raise ValueError("not arithmetic of whole numbers")


def _judge(expression: str, question: tuple[str, str, int, int]) -> Verdict:
    family, variable, a, b = question
    right = FAMILIES[family].right
    task = FunctionTask(
        id=f"python_tool/{family}/{variable}/{a}/{b}",
        path="solution.py",
        function="solution",
        inputs=lambda rng: [rng.randint(1, 9999)],
        reference=lambda number: right(number, a, b),
        cases=_CASES,
        fixed=((1,), (10,)),
    )
    # Parsed as an expression in the box: what is none, or ends the line, is a wrong answer there.
    scope = f"{{{variable!r}: {variable}}}"
    code = (
        f"code = compile({expression!r}, 'answer', 'eval')\ndef solution({variable}):\n    return eval(code, {scope})\n"
    )
    files = Tree.of({"solution.py": code.encode("utf-8", "backslashreplace")})
    found = judge_outside(task, files, workshop=judge_workshop(), secret=_SECRET)
    return replace(found, world_state_checks={"answered": True, "right": bool(found.success)}, verifier="python_tool/1")


def _task(split: str, seed: int) -> Task:
    rng = random.Random(seed)
    while True:
        family, a, b = rng.choice(list(FAMILIES)), rng.randint(2, 30), rng.randint(1, 50)
        variable = rng.choice("mkqz") if split == "new_vocabulary" else rng.choice("xyn")
        if in_share(split, f"{family}/{variable}/{a}/{b}"):
            data: dict[str, Json] = {"family": family, "variable": variable, "a": a, "b": b}
            return Task(id=f"python_tool/{seed}", seed=seed, family=family, split=split, data=data)


def _call(name: str, arg: str) -> ToolCall:
    return ToolCall(name=name, arguments={"arg": arg})


_POLICY = Policy(tools=(python(),), limits=Limits(wall_s=20.0, cpu_s=5, output_keep_bytes=4096))
