"""Questions to an environment outside of rollouts, on one thread, each within a time limit and attributed to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from kifu.envs.declared import asking
from kifu.errors import EnvironmentFailure

Value = TypeVar("Value")

LIMIT_S = 30.0
"""Seconds one answer may take where no experiment says otherwise; the default of ``collector_limits.tool_seconds``."""


@dataclass(slots=True, eq=False)
class _Question(Generic[Value]):
    call: Callable[[], Value]
    answered: threading.Event = field(default_factory=threading.Event)
    value: Value | None = None
    error: BaseException | None = None

    def answer(self) -> None:
        try:
            self.value = self.call()
        except BaseException as error:  # foreign code may raise SystemExit; whoever asked attributes it
            self.error = error
        finally:
            self.answered.set()


class Questions:
    """Puts questions to one environment, all on the same thread. A thread that hangs is left behind.

    Args:
        who: which environment, for messages.
        limit_s: seconds one answer may take.
    """

    def __init__(self, who: str, *, limit_s: float = LIMIT_S) -> None:
        self._who = who
        self._limit_s = limit_s
        self._queue: SimpleQueue[_Question[Any] | None] = SimpleQueue()
        self._lost = False
        threading.Thread(target=self._work, name="kifu-questions", daemon=True).start()

    def ask(self, what: str, call: Callable[[], Value]) -> Value:
        """The answer.

        Args:
            what: what is asked, for messages.
            call: asks.

        Raises:
            EnvironmentFailure: it raised something else than a `UsageError`, ended the thread, or took too long.
        """
        where, question = f"{self._who}, {what}", _Question(call)
        self._queue.put(question)
        if self._lost or not question.answered.wait(self._limit_s):
            self._lost = True
            raise EnvironmentFailure(
                f"{where}: no answer within {self._limit_s:g} s. Mend the environment, or raise "
                "environment.collector_limits.tool_seconds where it needs that long."
            )
        with asking(where):
            if isinstance(question.error, SystemExit | KeyboardInterrupt):
                raise RuntimeError(f"{type(question.error).__name__} {question.error}") from question.error
            if question.error is not None:
                raise question.error
        return cast(Value, question.value)

    def leave(self, close: Callable[[], object]) -> None:
        """Close what was asked; a thread that hangs has been told already and is asked nothing more.

        Raises:
            EnvironmentFailure: closing raised or took too long.
        """
        if not self._lost:
            self.ask("closing it", close)

    def end(self) -> None:
        """Let the thread go when it has answered."""
        self._queue.put(None)

    def _work(self) -> None:
        while (question := self._queue.get()) is not None:
            question.answer()


@contextmanager
def questions(who: str, *, limit_s: float = LIMIT_S) -> Iterator[Questions]:
    """Questions to one environment; see `Questions`."""
    asked = Questions(who, limit_s=limit_s)
    try:
        yield asked
    finally:
        asked.end()


def asked(who: str, what: str, call: Callable[[], Value], *, limit_s: float = LIMIT_S) -> Value:
    """One question; see `Questions.ask`."""
    with questions(who, limit_s=limit_s) as interview:
        return interview.ask(what, call)
