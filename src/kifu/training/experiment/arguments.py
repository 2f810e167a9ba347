"""Arguments of the calls from Python, checked before anything is read: what each must be, and what was found."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kifu.envs import Task
from kifu.errors import UsageError

MAX_SEED = 2**63 - 1
"""A record holds its seed in 64 bits with a sign."""


def path_of(value: Any, *, where: str) -> Path:  # noqa: ANN401 (whatever a caller gives)
    """The path of a file or folder.

    Raises:
        UsageError: no path, or one that no file can have.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str):
        raise UsageError(f"{where} is {value!r:.100}, expected a path: text or pathlib.Path")
    if not text or "\0" in text:
        raise UsageError(f"{where} is {text!r:.100}, expected a path that a file can have")
    return Path(text)


def check_seed(value: Any, *, where: str) -> None:  # noqa: ANN401
    """Refuse a seed that records cannot hold.

    Raises:
        UsageError: no whole number, negative or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{where}: seed is {value!r:.100}, expected a whole number")
    if not 0 <= value <= MAX_SEED:
        raise UsageError(f"{where}: seed is {value}, expected a whole number from 0 to {MAX_SEED} (2**63 - 1)")


def model_name(value: Any, *, where: str) -> str:  # noqa: ANN401
    """The name of a model, or its folder, as text.

    Raises:
        UsageError: neither.
    """
    if isinstance(value, str) and value.strip():
        return value
    return str(path_of(value, where=f"{where}: model"))


def text_of(value: Any, *, name: str, where: str, expected: str) -> str:  # noqa: ANN401
    """A word.

    Raises:
        UsageError: no text.
    """
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {name} is {value!r:.100}, expected {expected}")
    return value


def listed_tasks(value: Any, *, where: str) -> tuple[Task, ...]:  # noqa: ANN401
    """Tasks given as a list.

    Raises:
        UsageError: no list, an empty one, or something in it that is no task.
    """
    expected = "the path of a JSONL file, or a list of kifu.Task"
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise UsageError(f"{where}: tasks is {value!r:.100}, expected {expected}")
    found = tuple(value)
    if not found:
        raise UsageError(f"{where}: tasks is empty, expected {expected}; None takes the environment's own")
    for at, item in enumerate(found):
        if not isinstance(item, Task):
            raise UsageError(f"{where}: tasks[{at}] is {item!r:.100}, expected a kifu.Task")
    return found


def check_reward(value: Any, *, where: str) -> None:  # noqa: ANN401
    """Refuse what cannot judge an answer.

    Raises:
        UsageError: neither a function nor the name of a verifier.
    """
    if value is not None and not isinstance(value, str) and not callable(value):
        raise UsageError(
            f"{where}: reward is {value!r:.100}, expected exact, numeric, regex, or a function of answer and task"
        )


def check_count(value: Any, *, name: str, where: str) -> None:  # noqa: ANN401
    """Refuse what counts nothing; None is what the run says.

    Raises:
        UsageError: no whole number above 0.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{where}: {name} is {value!r:.100}, expected a whole number from 1, or None")
