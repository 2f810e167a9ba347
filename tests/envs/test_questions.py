"""Questions outside of rollouts: one thread, a time limit, every failure attributed."""

import threading
import time
from collections.abc import Callable

import pytest

from kifu.envs.questions import Questions, asked, questions
from kifu.errors import EnvironmentFailure, UsageError


def raises(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_every_question_is_asked_on_the_same_thread() -> None:
    """Worlds may hold things that only the thread that made them may use."""
    with questions("environment `x`") as world:
        threads = {world.ask("who", threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_an_answer_that_does_not_come_is_named_after_the_limit() -> None:
    never, began = threading.Event(), time.perf_counter()
    with pytest.raises(EnvironmentFailure, match=r"environment `x`, closing it: no answer within 0.05 s.*tool_seconds"):
        asked("environment `x`", "closing it", never.wait, limit_s=0.05)
    assert time.perf_counter() - began < 5
    never.set()


def test_a_thread_that_hangs_is_asked_nothing_more() -> None:
    never = threading.Event()
    world = Questions("environment `x`", limit_s=0.05)
    with pytest.raises(EnvironmentFailure):
        world.ask("first", never.wait)
    began = time.perf_counter()
    with pytest.raises(EnvironmentFailure, match="second: no answer"):
        world.ask("second", int)
    assert time.perf_counter() - began < 0.05
    never.set()
    world.end()


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_is_raised_is_the_environments(error: BaseException) -> None:
    with pytest.raises(EnvironmentFailure, match=type(error).__name__):
        asked("environment `x`", "listing its tasks", raises(error))


def test_a_contradiction_stays_one() -> None:
    with pytest.raises(UsageError, match="no such split"):
        asked("environment `x`", "listing its tasks", raises(UsageError("no such split")))
