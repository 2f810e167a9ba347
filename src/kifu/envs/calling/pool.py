"""Threads for code that may never return: bounded, replaced when a call hangs, never waited for at exit."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from kifu.errors import EnvironmentFailure


class HungCall(Exception):
    """A call that did not return in time; its thread goes on and is counted."""


class Job:
    """One call on a thread, delivered to the event loop that asked."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.started_at: float | None = None
        self._lock = threading.Lock()
        self._done = False
        self._left = False
        self._after: Callable[[], None] | None = None

    def execute(self) -> bool:
        """Run on the worker's thread; returns whether nobody waits for the answer any more."""
        outcome: tuple[Any, BaseException | None] = (None, None)
        with self._lock:
            wanted = not self._left
            self.started_at = time.perf_counter()
        if wanted:
            try:
                outcome = (self.call(), None)
            except BaseException as error:  # foreign code may raise SystemExit; the waiter attributes it
                outcome = (None, error)
        with self._lock:
            self._done = True
            left, after = self._left, self._after
        if not left:
            with suppress(RuntimeError):  # the loop was closed; nobody is there to hear it
                self.loop.call_soon_threadsafe(self._deliver, outcome)
        elif after is not None:
            after()
        return left

    def _deliver(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

    def leave(self) -> bool:
        """Stop waiting; returns False when the call has already returned."""
        with self._lock:
            self._left = not self._done
            return self._left

    def then(self, after: Callable[[], None]) -> bool:
        """Run ``after`` on the same thread once a call that was left returns; False when it already has."""
        with self._lock:
            if self._done:
                return False
            self._after = after
            return True


class WorkerPool:
    """Daemon threads that run blocking calls for any event loop.

    Args:
        size: calls that run at once; further ones wait, and their time limit starts when they start.
        max_hung: calls that were left and still hold a thread; beyond it, new calls are refused.
    """

    def __init__(self, *, size: int = 32, max_hung: int = 256) -> None:
        self.size = size
        self.max_hung = max_hung
        self.hung = 0
        """Calls now left running."""
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._live = 0
        self._idle = 0
        self._pending = 0

    async def run(self, job: Job, *, timeout_s: float) -> tuple[Any, BaseException | None]:
        """The call's result, or the exception it raised, as a pair. A cancelled caller leaves the call running.

        Raises:
            HungCall: it did not return within ``timeout_s`` of its start.
            EnvironmentFailure: too many earlier calls hang.
        """
        if self.hung >= self.max_hung:
            raise EnvironmentFailure(
                f"{self.hung} calls of environments hang and hold threads, the limit is {self.max_hung}; "
                'run such environments with isolation = "process"'
            )
        self._submit(job)
        try:
            wait_s = timeout_s
            while not (await asyncio.wait([job.future], timeout=wait_s))[0]:
                started = job.started_at
                wait_s = timeout_s if started is None else started + timeout_s - time.perf_counter()
                if wait_s <= 0:
                    raise HungCall(f"no answer within {timeout_s:g} s")
        except BaseException:
            self._leave(job)
            raise
        return job.future.result()

    def _submit(self, job: Job) -> None:
        with self._lock:
            self._pending += 1
            self._grow()
        self._queue.put(job)

    def _grow(self) -> None:
        if self._pending > self._idle and self._live < self.size:
            self._live += 1
            threading.Thread(target=self._work, name="kifu-environment", daemon=True).start()

    def _leave(self, job: Job) -> None:
        if job.leave():
            with self._lock:
                self.hung += 1
                self._live -= 1
                self._grow()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._queue.get()
            with self._lock:
                self._idle -= 1
                self._pending -= 1
            if job.execute():
                with self._lock:
                    self.hung -= 1
                return


SHARED = WorkerPool()
"""The pool used when none is given."""
