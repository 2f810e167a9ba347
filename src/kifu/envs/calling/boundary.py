"""Calling foreign code from the event loop: on a thread, within a time limit, every failure attributed once."""

import asyncio
import sysconfig
import time
import traceback
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

from kifu.envs.calling.pool import HungCall, Job, WorkerPool
from kifu.envs.text import clip, visible
from kifu.errors import BoundaryError, EnvironmentFailure

_NOT_THE_AUTHORS = [
    Path(__file__).parents[2],
    *map(Path, {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}),
]


class Boundary:
    """Runs the calls of one instance, one after another; after a failure it refuses further ones.

    Args:
        pool: threads to run on.
        timeout_s: wall seconds one call may take, counted from when it starts.
        kill: called when a call is left running, to end it if it can be ended.
    """

    def __init__(self, pool: WorkerPool, *, timeout_s: float, kill: Callable[[], None]) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._kill = kill
        self._stuck: Job | None = None
        self.failed = False
        """Whether the state is unknown because a call raised, hung or returned nonsense."""

    async def run(
        self,
        where: str,
        call: Callable[[], Any],
        *,
        look: Callable[[], Any] | None = None,
        failure: type[BoundaryError] = EnvironmentFailure,
    ) -> tuple[Any, float, Any]:
        """What ``call`` returned or its awaitable gave, the seconds it took, and what ``look`` saw right after.

        Raises:
            BoundaryError: of type ``failure``, unless what escaped is attributed already.
        """
        if self.failed:
            raise failure(f"{where}: an earlier call failed, so the state is unknown")

        def work() -> tuple[Any, float, Any]:
            began = time.perf_counter()
            found = call()
            seconds = time.perf_counter() - began
            return found, seconds, look() if look is not None and not isawaitable(found) else None

        found, seconds, seen = await self._on_thread(where, work, failure)
        if isawaitable(found):
            began = time.perf_counter()
            found = await self._awaited(where, found, failure)
            seconds += time.perf_counter() - began
            seen = None if look is None else await self._on_thread(where, look, failure)
        return found, seconds, seen

    def nonsense(self, where: str, why: str, failure: type[BoundaryError] = EnvironmentFailure) -> BoundaryError:
        """The failure to raise when a call returned something the contract does not know."""
        self.failed = True
        return failure(f"{where} {why}")

    def after_stuck(self, action: Callable[[], None]) -> bool:
        """Run ``action`` on the thread of a call that was left, once it returns; False when none is running."""
        return self._stuck is not None and self._stuck.then(action)

    async def _on_thread(self, where: str, work: Callable[[], Any], failure: type[BoundaryError]) -> Any:  # noqa: ANN401
        job = self._stuck = Job(work)
        try:
            result, error = await self._pool.run(job, timeout_s=self._timeout_s)
        except HungCall as hung:
            self._abandon()
            raise failure(f"{where} gave {hung}; the instance is abandoned") from None
        except BaseException:
            self._abandon()
            raise
        self._stuck = None
        if error is not None:
            raise self._attributed(where, error, failure)
        return result

    def _abandon(self) -> None:
        self.failed = True
        self._kill()

    async def _awaited(self, where: str, found: Any, failure: type[BoundaryError]) -> Any:  # noqa: ANN401
        task = asyncio.ensure_future(found)
        try:
            done, _ = await asyncio.wait([task], timeout=self._timeout_s)
        except BaseException:
            self._abandon()
            task.cancel()
            raise
        if not done:
            self._abandon()
            task.cancel()
            raise failure(f"{where} gave no answer within {self._timeout_s:g} s; the instance is abandoned")
        if task.cancelled():
            raise self._attributed(where, RuntimeError("it cancelled itself"), failure)
        error = task.exception()
        if error is not None:
            raise self._attributed(where, error, failure)
        return task.result()

    def _attributed(self, where: str, error: BaseException, failure: type[BoundaryError]) -> BoundaryError:
        self.failed = True
        if isinstance(error, BoundaryError):
            return error
        text = clip(visible(str(error)), limit_bytes=1000)[0]
        attributed = failure(f"{where} raised {type(error).__name__}: {text}{_place(error)}")
        attributed.__cause__ = error
        return attributed


def _place(error: BaseException) -> str:
    """The last line outside of kifu and of its environment's libraries that the error came through, for its author."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_foreign(file: str) -> bool:
    return not any(Path(file).is_relative_to(place) for place in _NOT_THE_AUTHORS)
