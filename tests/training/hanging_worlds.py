"""Worlds that never answer one question of the preparation."""

import time
from collections.abc import Iterator

from kifu.envs import Task, ToolSpec
from kifu.envs.suites.key_door import KeyDoor


def _hang() -> None:
    time.sleep(3600)


class InTasks(KeyDoor):
    """Never lists a task."""

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterator[Task]:
        """Hang."""
        _hang()
        yield from super().tasks(split, seed)


class InClose(KeyDoor):
    """Never closes."""

    def close(self) -> None:
        """Hang."""
        _hang()


class InMaking(KeyDoor):
    """Never is."""

    def __init__(self) -> None:
        super().__init__()
        _hang()


class InTools(KeyDoor):
    """Never says what it can do."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Hang."""
        _hang()
        return super().tools()


class Later(KeyDoor):
    """Answers until it is told to hang."""

    hangs = False

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterator[Task]:
        """Hang when told to."""
        if cls.hangs:
            _hang()
        yield from super().tasks(split, seed)

    @classmethod
    def gold_answer(cls, task: Task) -> str | None:
        """Hang when told to."""
        if cls.hangs:
            _hang()
        return "red"
