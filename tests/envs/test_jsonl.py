"""Questions from a file: good lines, bad lines with their number, rewards of every kind."""

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kifu.envs import Environment, GuardedEnvironment, Task, resolve_environment
from kifu.envs.play import play, scripted
from kifu.envs.suites.jsonl import QuestionTask, RewardFunction, load_questions, questions
from kifu.errors import UsageError, VerifierFailure
from kifu.records import Verdict
from kifu.testing import check_env

GOOD = """\
{"prompt": "2+2?", "answer": "4", "verifier": "numeric", "family": "sums"}

{"prompt": "Capital of France?", "answer": ["Paris", "paris city"], "id": 7}
{"prompt": "Yes or no?", "answer": "yes|no", "verifier": "regex", "split": "held_out"}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl"
    path.write_text(GOOD)
    return path


async def earned(cls: type[Environment], task: Task, answer: str) -> float | None:
    guard = GuardedEnvironment(cls)
    try:
        return (await play(guard, task, scripted([answer]))).verdict.reward
    finally:
        await guard.close()


async def test_lines_become_tasks_judged_by_their_own_verifier(good: Path) -> None:
    cls = questions(good)
    sums, paris = islice(cls.tasks("train", 0), 2)
    other = next(iter(cls.tasks("held_out", 0)))
    assert (sums.id, sums.family, paris.id, other.split) == ("good/1", "sums", "7", "held_out")
    assert await earned(cls, sums, "I think it is 4.") == 1.0
    assert await earned(cls, sums, "5") == 0.0
    assert await earned(cls, paris, "paris.") == 1.0
    assert await earned(cls, paris, "4") == 0.0
    assert await earned(cls, other, "no") == 1.0


def test_questions_keep_the_contract(good: Path) -> None:
    check_env(questions(good, reward="exact"), list(questions(good).rows)[:2], resets=50)


def test_tasks_repeat_for_ever_in_the_order_of_the_file(good: Path) -> None:
    assert [task.id for task in islice(questions(good).tasks("train", 1), 4)] == ["7", "good/1", "7", "good/1"]
    with pytest.raises(UsageError, match="no line of split `test`, found: held_out, train"):
        next(iter(questions(good).tasks("test", 0)))


def half(answer: str, task: Task) -> float:
    return 0.5 if answer else 0.0


def whole(answer: str, task: Task) -> bool:
    return answer == task.data["answer"]


def judged(answer: str, task: Task) -> Verdict:
    return Verdict(success=True, score=0.25, verifier="mine/1")


def broken(answer: str, task: Task) -> float:
    raise ZeroDivisionError


def words(answer: str, task: Task) -> float:
    return "good"  # type: ignore[return-value]


def not_a_number(answer: str, task: Task) -> float:
    return float("nan")


def single_precision(answer: str, task: Task) -> float:
    return np.float32(0.5)  # type: ignore[return-value]


def numpy_truth(answer: str, task: Task) -> bool:
    return np.bool_(answer == "4")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("rule", "reward"), [(half, 0.5), (whole, 1.0), (judged, 0.25), (single_precision, 0.5), (numpy_truth, 1.0)]
)
async def test_a_reward_function_may_return_a_score_a_success_or_a_verdict(
    good: Path, rule: RewardFunction, reward: float
) -> None:
    cls = questions(good, reward=rule)
    assert await earned(cls, cls.rows[0], "4") == reward


async def test_a_reward_function_is_found_by_its_file(good: Path) -> None:
    (good.parent / "my_rules.py").write_text("def exclaims(answer, task):\n    return answer.endswith('!')\n")
    cls = resolve_environment(f"{good}@{good.parent}/my_rules.py:exclaims")
    task = next(iter(cls.tasks("train", 0)))
    assert (await earned(cls, task, "4!"), await earned(cls, task, "4")) == (1.0, 0.0)
    with pytest.raises(UsageError, match="reward: no file"):
        questions(good, reward="gone.py:exclaims")


@pytest.mark.parametrize("rule", [broken, words, not_a_number])
async def test_a_broken_reward_function_is_a_verifier_failure_and_no_reward(good: Path, rule: RewardFunction) -> None:
    cls = questions(good, reward=rule)
    with pytest.raises(VerifierFailure):
        await earned(cls, cls.rows[0], "4")


async def test_silence_is_a_failure(good: Path) -> None:
    cls = questions(good)
    guard = GuardedEnvironment(cls)
    episode = await play(guard, cls.rows[0], scripted([]))
    assert (episode.verdict.success, dict(episode.verdict.format_checks)) == (False, {"answered": False})
    await guard.close()


def test_a_file_is_an_environment_by_its_name(good: Path) -> None:
    cls = resolve_environment(f"{good}@numeric")
    assert issubclass(cls, QuestionTask)
    assert len(cls.rows) == 3
    found = resolve_environment(f"{good}@math:hypot")
    assert issubclass(found, QuestionTask)
    assert found.reward[0].__name__ == math.hypot.__name__


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", r"bad\.jsonl, line 2: not JSON"),
        (b"[1]", r"line 2: found list, expected an object"),
        (b"{}", r"line 2: no text in `prompt`; The object is empty"),
        (b'{"promt": "x"}', r"line 2: no text in `prompt`; did you mean `promt`"),
        (b'{"prompt": 3}', r"line 2: no text in `prompt`"),
        (b'{"prompt": "x", "split": 1}', r"line 2: found split 1, expected a text"),
        (b'{"prompt": "x", "verifier": "numeric1"}', r"line 2: no verifier `numeric1`; did you mean `numeric`"),
        (b'{"prompt": "caf\xe9"}', r"line 2: not UTF-8"),
        (b'{"prompt": "a \\ud800 b"}', r"line 2: found the lone surrogate \\ud800"),
        (b'{"prompt": "x", "id": "\\udc00"}', r"line 2: found the lone surrogate \\udc00"),
        (b'{"prompt": "x", "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"line 2: JSON that cannot be held"),
        (b'{"prompt": "x", "answer": ' + b"9" * 6_000 + b"}", r"line 2: JSON that cannot be held"),
        (b'{"prompt": "x", "id": "bad/1"}', r"line 2: id 'bad/1' stands on an earlier line"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "ok", "answer": "1"}\n' + line + b"\n")
    with pytest.raises(UsageError, match=words):
        load_questions(path)


def test_files_without_tasks_answers_or_existence_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    with pytest.raises(UsageError, match="no file"):
        questions(path)
    path.write_text("\n\n")
    with pytest.raises(UsageError, match="no tasks"):
        questions(path)
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(UsageError, match="no `answer` to compare with"):
        questions(path)
    assert len(questions(path, reward=half).rows) == 1


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("exakt", "did you mean `exact`"),
        ("no_such_module:f", "no module `no_such_module`"),
        ("math:no_such", "has no function `no_such`"),
    ],
)
def test_an_unknown_reward_is_refused_by_name(good: Path, reward: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        questions(good, reward=reward)
