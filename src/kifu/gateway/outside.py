"""Running agents that know nothing of kifu: a Python function, or a command in any language.

Each attempt gets a base URL and a key of its own and becomes one record. Whatever goes wrong is an outcome, never a
reward of 0.
"""

import asyncio
import inspect
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from kifu.envs import Task
from kifu.errors import AgentFailure, UsageError, VerifierFailure, crossing
from kifu.gateway.attempting import Terms, attempt, prompt_of
from kifu.gateway.endpoint import Endpoint, OutsideAgent, Ran, handed_on
from kifu.gateway.gateway import Gateway
from kifu.gateway.threads import on_own_thread
from kifu.records import EnvironmentRef, RolloutKey, Trajectory, Verdict

MAX_OUTPUT_BYTES = 65_536
"""Of what a command prints, kept from its end."""
TASK = "AGENT_TASK"
"""Variable of a command's environment: the task as it is given, a JSON object."""
KILL_AFTER_S = 3.0
"""Between asking a command to end and ending it."""

Verify: TypeAlias = Callable[[Task, Ran], "Verdict | bool | float | Awaitable[Verdict | bool | float]"]
"""Judges an attempt, in the owner's process; the agent has no key that could."""


AgentFunction: TypeAlias = Callable[[Task, Endpoint], object]
AgentClass: TypeAlias = Callable[[], AgentFunction]
"""Takes a task and where its policy is; gives its answer."""


class Function:
    """Implements `OutsideAgent` with a function ``(task, endpoint)``; one that is not async runs on a thread.

    A thread cannot be stopped: when its time is over its keys are revoked, and its calls are refused.

    Args:
        call: the function; or a class, of which every attempt makes an instance that is called.
        name: instead of the function's own.
    """

    def __init__(self, call: AgentFunction | AgentClass, *, name: str | None = None) -> None:
        self.call: Any = call
        self.id = f"function:{name or getattr(call, '__qualname__', type(call).__name__)}"

    def __call__(self, task: Task, endpoint: Endpoint) -> object:
        """Call the function itself."""
        return self.call(task, endpoint)

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task."""
        with crossing(AgentFailure, self.id):
            call: Any = self.call() if inspect.isclass(self.call) else self.call
            if inspect.iscoroutinefunction(call if inspect.isroutine(call) else type(call).__call__):
                return Ran(value=await call(task, endpoint))
            return Ran(value=await on_own_thread(partial(call, task, endpoint), name=self.id))


def agent(call: AgentFunction | AgentClass) -> Function:
    """Decorator: a function ``(task, endpoint)``, or a class whose instances are called so, is an agent.

    It can be run, recorded and trained.
    """
    return Function(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Implements `OutsideAgent` with a program; it finds its endpoint in the environment.

    In the arguments ``{task}`` (its prompt), ``{base_url}`` and ``{model}`` are replaced, without any shell. Variables
    of this process that hold keys of vendors or of kifu are not handed on. The program and what it started end when
    its time is over.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.arguments:
            raise UsageError("a command needs at least the name of a program")

    @property
    def id(self) -> str:
        """The program's name."""
        return f"command:{Path(self.arguments[0]).name}"

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task."""
        values = {"{task}": prompt_of(task), "{base_url}": endpoint.base_url, "{model}": endpoint.model}
        arguments, told = [filled(text, values) for text in self.arguments], json.dumps({**task.data, "id": task.id})
        with crossing(AgentFailure, self.id):
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env={**handed_on(os.environ), **endpoint.environment, TASK: told, **self.environment},
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            output, errors, status = await asyncio.gather(_tail(process.stdout), _tail(process.stderr), process.wait())
        finally:
            await _end(process)
        if status:
            raise AgentFailure(f"{self.id} ended with status {status}: {errors[-1000:].strip() or 'it said nothing'}")
        return Ran(output=output)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outside:
    """Runs an agent against a gateway that listens.

    Every attempt is opened, run, judged and sealed. An attempt that infrastructure spoiled is recorded and made again.
    """

    gateway: Gateway
    url: str
    """Address of the gateway."""
    agent: OutsideAgent
    verify: Verify
    timeout_s: float = 600.0
    """Of one attempt."""
    attempts: int = 1
    """At most, of one place in the run."""
    at_once: int = 16

    async def run(self, places: Iterable[tuple[RolloutKey, Task]]) -> list[Trajectory]:
        """Attempt tasks, several at once; gives the last attempt of each place, in order."""
        gate = asyncio.Semaphore(self.at_once)

        async def one(key: RolloutKey, task: Task) -> Trajectory:
            async with gate:
                return await self.attempt(key, task)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(key, task)) for key, task in places]
        return [item.result() for item in tasks]

    async def attempt(self, key: RolloutKey, task: Task) -> Trajectory:
        """Attempt a task until infrastructure holds, or the attempts are over."""
        record = await self._once(key, task)
        for number in range(1, self.attempts):
            if not record.outcome.infra_error:
                break
            record = await self._once(replace(key, attempt=key.attempt + number), task)
        return record

    async def _once(self, key: RolloutKey, task: Task) -> Trajectory:
        given = Terms(sampling=None, timeout_s=self.timeout_s)
        return await attempt(
            self.gateway, _Plain(task, self.verify), agent=self.agent, url=self.url, key=key, terms=given
        )


class _Plain:
    """A task without a world: its verifier looks at what the agent left behind."""

    def __init__(self, task: Task, verify: Verify) -> None:
        self.task = task
        self._verify = verify

    async def begin(self) -> Task:
        return replace(self.task, data={"prompt": prompt_of(self.task)})

    async def judge(self, ran: Ran) -> Verdict:
        with crossing(VerifierFailure, f"verifying {self.task.id}"):
            found = self._verify(self.task, ran)
            judged = await found if inspect.isawaitable(found) else found
            if isinstance(judged, Verdict):
                return judged
            if isinstance(judged, bool):
                return Verdict(success=judged, verifier="function/1")
            return Verdict(success=None, score=float(judged), verifier="function/1")

    async def end(self) -> EnvironmentRef | None:
        return None


def filled(text: str, values: Mapping[str, str]) -> str:
    """Placeholders replaced once; what is put in is not looked at again."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group()], text)


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read to the end, keep the end."""
    kept = b""
    while piece := await stream.read(MAX_OUTPUT_BYTES):
        kept = (kept + piece)[-MAX_OUTPUT_BYTES:]
    return kept.decode("utf-8", errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program and what it started."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, name)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), KILL_AFTER_S)
        except TimeoutError:
            continue
    await process.wait()
