"""An agent as a function of a file: each attempt in a process of its own, what the file imports imported once."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kifu.envs import Task
from kifu.errors import AgentFailure
from kifu.gateway.endpoint import Endpoint, Ran, handed_on

HOST = Path(__file__).with_name("host.py")
MAX_LINE_BYTES = 1 << 20
START_S = 120.0
"""For what the file imports to be imported."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Host:
    """A process that forks attempts, and who waits for them."""

    process: asyncio.subprocess.Process
    is_over: bool = False
    """Whether it answers nobody any more."""
    waiting: dict[int, "asyncio.Future[Ran]"] = field(default_factory=dict)

    async def send(self, line: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        await self.process.stdin.drain()

    async def listen(self) -> None:
        """Hand out answers until the process ends."""
        assert self.process.stdout is not None
        why = "its host process ended"
        try:
            while text := await self.process.stdout.readline():
                line = json.loads(text)
                waits = self.waiting.pop(line["job"], None)
                if waits is None or waits.done():
                    continue
                if "error" in line:
                    waits.set_exception(AgentFailure(line["error"][:2000]))
                else:
                    waits.set_result(Ran(value=line["value"]))
        except ValueError as broken:
            why = f"its host process said something unreadable: {broken}"
        self.is_over = True
        for waits in self.waiting.values():
            if not waits.done():
                waits.set_exception(AgentFailure(why))
        self.waiting.clear()


class Forked:
    """Implements `OutsideAgent` with a function of a Python file that takes a task, a dictionary, and gives its answer.

    The function finds its endpoint in the environment, as every client does. Each attempt is a process of its own: it
    cannot see another's, and it ends, with all it started, when its time is over. What the file imports is imported
    once, by the interpreter the agent needs, which need not be kifu's.

    Args:
        file: Python file; it is executed anew for every attempt.
        function: name of a function in it, async or not.
        python: interpreter; None is the one that runs kifu.
    """

    def __init__(self, file: Path, function: str, *, python: str | None = None) -> None:
        self.file = file
        self.function = function
        self.id = f"file:{file.name}:{function}"
        self._python = python or sys.executable
        self._host: _Host | None = None
        self._listening: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._jobs = 0

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task."""
        host = await self._started()
        self._jobs += 1
        job, waits = self._jobs, asyncio.get_running_loop().create_future()
        host.waiting[job] = waits
        told = {**task.data, "id": task.id}
        try:
            await host.send({"job": job, "task": told, "environment": endpoint.environment})
            found: Ran = await waits
        except OSError as cause:
            raise AgentFailure(f"{self.id}: its host process cannot be reached: {cause}") from cause
        except AgentFailure as failure:
            raise AgentFailure(f"{self.id}: {failure}") from failure
        finally:
            if host.waiting.pop(job, None) is not None and not host.is_over:
                with suppress(OSError):  # it is gone, and with it the attempt
                    await asyncio.shield(host.send({"end": job}))
        return found

    async def close(self) -> None:
        """End the host and with it every attempt under way."""
        host, self._host = self._host, None
        if host is None or self._listening is None:
            return
        assert host.process.stdin is not None
        host.process.stdin.close()
        await self._listening
        await host.process.wait()

    async def _started(self) -> _Host:
        """The host; one that ended is started again."""
        async with self._starting:
            if self._host is None or self._host.is_over:
                self._host = await self._start()
                self._listening = asyncio.create_task(self._host.listen())
            return self._host

    def _environment(self) -> dict[str, str]:
        """Variables of the host; where another interpreter finds its modules is not this one's business."""
        own = () if self._python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
        return {name: value for name, value in handed_on(os.environ).items() if name not in own}

    async def _start(self) -> _Host:
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                str(HOST),
                str(self.file),
                self.function,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as cause:
            raise AgentFailure(f"{self.id}: its interpreter {self._python} cannot be started: {cause}") from cause
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = json.loads(await process.stdout.readline() or b'{"failed": "it ended at once"}')
        except (TimeoutError, ValueError) as cause:
            line = {"failed": f"it did not begin within {START_S} s: {cause!r}"}
        if "failed" in line:
            process.kill()
            await process.wait()
            raise AgentFailure(f"{self.id}: {self._python} cannot run it: {line['failed']}")
        return _Host(process=process)
