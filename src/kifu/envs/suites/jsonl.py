"""Questions from a JSONL file, each answered by one message: the environment of single-turn RLVR."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from kifu.envs.contract import Environment
from kifu.envs.files import load_module
from kifu.envs.spec import Capabilities, Snapshot, Task, ToolSpec
from kifu.envs.text import visible
from kifu.errors import UsageError, nearest
from kifu.records import Json, ToolCall, Verdict
from kifu.verify import exact, numeric, regex

RewardFunction: TypeAlias = Callable[[str, Task], "bool | float | Verdict"]
"""From the policy's answer and the task (its ``data`` is the line) to a verdict, a success, or a score."""


def _exact(answer: str, task: Task) -> Verdict:
    expected = task.data.get("answer")
    return exact(answer, [str(item) for item in expected] if isinstance(expected, list) else str(expected))


def _numeric(answer: str, task: Task) -> Verdict:
    return numeric(answer, str(task.data.get("answer")))


def _regex(answer: str, task: Task) -> Verdict:
    return regex(answer, str(task.data.get("answer")))


REWARDS: Mapping[str, RewardFunction] = {"exact": _exact, "numeric": _numeric, "regex": _regex}
"""Built-in verifiers; each compares with the line's ``answer``."""


def _gold(task: Task) -> str | None:
    """The line's answer, the first of several; None where a line has none."""
    answer = task.data.get("answer")
    first = answer[0] if isinstance(answer, list) and answer else answer
    return None if first is None or isinstance(first, list | dict) else str(first)


class QuestionTask(Environment):
    """Shows a prompt and judges the message that follows. `questions` binds it to a file and a reward."""

    id: ClassVar[str] = "questions"
    capabilities: ClassVar[Capabilities] = Capabilities(verify="text")
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "one per line of the file",
        "observations": "the line's prompt",
        "hidden": "the line's answer",
        "actions": "one message",
        "reset, versions, seeds": "the line; no randomness",
        "success": "the verifier accepts the message",
        "failure": "it does not",
        "end": "the first message",
        "reward": "the verifier's verdict at the end",
        "irreversible": "answering",
    }
    rows: ClassVar[tuple[Task, ...]] = ()
    """Tasks of the file."""
    reward: ClassVar[tuple[RewardFunction, ...]] = ()
    """The reward function; empty: the one each task names as ``verifier``, else ``exact``."""

    gold_answer = staticmethod(_gold)

    def __init__(self) -> None:
        self._task: Task | None = None
        self._answer: str | None = None

    def reset(self, task: Task, seed: int) -> str:
        """Show the prompt."""
        self._task, self._answer = task, None
        prompt = task.data.get("prompt")
        if not isinstance(prompt, str):
            raise UsageError(f"question `{task.id}`: found prompt {prompt!r}, expected a text")
        return prompt

    def tools(self) -> tuple[ToolSpec, ...]:
        """None."""
        return ()

    def answered(self, text: str) -> None:
        """Take the message."""
        self._answer = text

    def verify(self) -> Verdict:
        """Judge the message; silence is a failure."""
        if self._task is None:
            raise UsageError("question: reset comes first")
        if self._answer is None:
            return Verdict(success=False, format_checks={"answered": False}, assurance="text", verifier="silence/1")
        rule = self.reward[0] if self.reward else resolve_reward(str(self._task.data.get("verifier", "exact")))
        return as_verdict(rule(self._answer, self._task), verifier=getattr(rule, "__qualname__", "reward"))

    def snapshot(self) -> Snapshot:
        """The answer so far; the task is given by reset."""
        return {"task": None if self._task is None else self._task.id, "answer": self._answer}

    def restore(self, ref: Snapshot) -> None:
        """Take back an answer; reset with the same task first."""
        here = None if self._task is None else self._task.id
        if not isinstance(ref, dict) or ref.get("task") != here:
            raise UsageError(f"question: found snapshot {ref!r}, expected one of task {here!r}; reset with it first")
        answer = ref.get("answer")
        self._answer = None if answer is None else str(answer)

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Lines of a split in the order of the file, from the one numbered ``seed`` (modulo their count) on, for ever.

        Raises:
            UsageError: no line belongs to the split.
        """
        rows = [task for task in cls.rows if task.split == split]
        if not rows:
            known = ", ".join(sorted({task.split for task in cls.rows})) or "no line at all"
            raise UsageError(f'questions: no line of split `{split}`, found: {known}. Give lines a "split" field.')
        at = seed
        while True:
            yield rows[at % len(rows)]
            at += 1

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """The line's answer. There is no noise to add."""
        answer = task.data.get("answer")
        if answer is None:
            raise UsageError(f'question `{task.id}` has no "answer", so there is nothing to demonstrate')
        return (str(answer[0] if isinstance(answer, list) else answer),)


def questions(path: str | Path, *, reward: str | RewardFunction | None = None) -> type[QuestionTask]:
    """The environment of one JSONL file.

    Each line is an object with ``prompt``; ``answer`` for the built-in verifiers; optional ``id``, ``family``,
    ``split`` (default ``train``) and ``verifier``.

    Args:
        path: the file.
        reward: ``exact``, ``numeric``, ``regex``, ``module:function``, ``file.py:function`` or a function; None: each
            line's ``verifier``.

    Raises:
        UsageError: a malformed line, named by its number, or an unknown reward.
    """
    rule = resolve_reward(reward) if isinstance(reward, str) else reward
    rows = load_questions(path)
    for task in rows:
        used = rule or resolve_reward(str(task.data.get("verifier", "exact")))
        if used in REWARDS.values() and "answer" not in task.data:
            raise UsageError(
                f"{path}, task {task.id!r}: no `answer` to compare with; add one, or give a reward function"
            )
    bound = {"rows": rows, "reward": () if rule is None else (rule,), "__doc__": f"Questions of {path}."}
    return type("Questions", (QuestionTask,), bound)


def load_questions(path: str | Path) -> tuple[Task, ...]:
    """Read the tasks of a JSONL file; empty lines are skipped.

    Raises:
        UsageError: names file, line, what was found and what was expected.
    """
    source = Path(path)
    if not source.is_file():
        raise UsageError(f"questions: no file {source} (looked from {Path.cwd()})")
    tasks: dict[str, Task] = {}
    for number, raw in enumerate(source.read_bytes().splitlines(), start=1):
        if raw.strip():
            task = _parse(raw, where=f"{source}, line {number}", default_id=f"{source.stem}/{number}")
            if task.id in tasks:
                raise UsageError(f"{source}, line {number}: id {task.id!r} stands on an earlier line too")
            tasks[task.id] = task
    if not tasks:
        raise UsageError(f'{source}: no tasks; expected one object per line, e.g. {{"prompt": "2+2?", "answer": "4"}}')
    return tuple(tasks.values())


def _read(raw: bytes, where: str) -> Any:  # noqa: ANN401 (a JSON tree)
    try:
        row = json.loads(raw)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise UsageError(f"{where}: JSON that cannot be held ({error}); leave that value out") from error
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        lone = visible(error.object[error.start : error.end])
        raise UsageError(f"{where}: found the lone surrogate {lone}, expected Unicode text; leave it out") from error
    return row


def _parse(raw: bytes, *, where: str, default_id: str) -> Task:
    row = _read(raw, where)
    if not isinstance(row, dict):
        raise UsageError(f"{where}: found {type(row).__name__}, expected an object with a prompt")
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        hint = nearest("prompt", list(row)) if row else "The object is empty."
        raise UsageError(f"{where}: no text in `prompt`; {hint}")
    if isinstance(row.get("id"), int):
        row["id"] = str(row["id"])
    for name in ("id", "family", "split", "verifier"):
        if name in row and not isinstance(row[name], str):
            raise UsageError(f"{where}: found {name} {row[name]!r}, expected a text")
    if "verifier" in row and ":" not in row["verifier"] and row["verifier"] not in REWARDS:
        raise UsageError(f"{where}: no verifier `{row['verifier']}`; {nearest(row['verifier'], list(REWARDS))}")
    data: dict[str, Json] = row
    return Task(
        id=str(row.get("id", default_id)),
        family=str(row.get("family", "")),
        split=str(row.get("split", "train")),
        data=data,
    )


def resolve_reward(name: str) -> RewardFunction:
    """A built-in verifier, or the function that ``module:function`` or ``path/to/file.py:function`` names.

    Raises:
        UsageError: nothing of that name.
    """
    if name in REWARDS:
        return REWARDS[name]
    module, colon, attribute = name.rpartition(":")
    if not colon:
        raise UsageError(
            f"no reward `{name}`; {nearest(name, list(REWARDS))} "
            "Your own is named `module:function` or `file.py:function`."
        )
    found = getattr(load_module(module, wanted="reward"), attribute, None)
    if not callable(found):
        raise UsageError(f"reward `{name}`: `{module}` has no function `{attribute}`")
    rule: RewardFunction = found
    return rule


def as_verdict(found: object, *, verifier: str) -> Verdict:
    """A verdict from what a reward function returned: success is a score of at least 1.

    Raises:
        TypeError: it returned something else; the rollout has no reward then.
    """
    if isinstance(found, Verdict):
        return found
    if isinstance(found, bool | np.bool_):
        return Verdict(success=bool(found), assurance="text", verifier=verifier)
    if isinstance(found, int | float | np.integer | np.floating):
        return Verdict(success=bool(found >= 1.0), score=float(found), assurance="text", verifier=verifier)
    raise TypeError(f"the reward function returned {type(found).__name__}, expected bool, float or Verdict")
