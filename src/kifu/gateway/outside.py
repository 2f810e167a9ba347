"""Running agents that know nothing of kifu: a Python function, or a command in any language.

Each attempt gets a base URL and a key of its own and becomes one record. Whatever goes wrong is an outcome, never a
reward of 0.
"""

import asyncio
import inspect
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from kifu.envs import Task
from kifu.errors import AgentFailure, UsageError, VerifierFailure, crossing
from kifu.gateway.gateway import Gateway
from kifu.records import EnvironmentRef, Outcome, RolloutKey, StopReason, TaskRef, Trajectory, Verdict

MAX_OUTPUT_BYTES = 65_536
"""Of what a command prints, kept from its end."""
KILL_AFTER_S = 3.0
"""Between asking a command to end and ending it."""

_PRIVATE = ("OPENAI_", "ANTHROPIC_", "KIFU_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an agent finds its policy."""

    base_url: str
    """With ``/v1``, as OpenAI's clients take it; Anthropic's take it without."""
    key: str
    model: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables that clients read by themselves."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.key,
            "ANTHROPIC_MODEL": self.model,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What an agent left behind; the verifier looks at it."""

    value: object = None
    """Returned by a function."""
    output: str = ""
    """Printed by a command, its end."""


class OutsideAgent(Protocol):
    """An agent that gets nothing but a task and an endpoint."""

    @property
    def id(self) -> str:
        """Name and version, for the record."""
        ...

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task.

        Raises:
            AgentFailure: it broke, which says nothing about the policy.
        """
        ...


Verify: TypeAlias = Callable[[Task, Ran], "Verdict | bool | float | Awaitable[Verdict | bool | float]"]
"""Judges an attempt, in the owner's process; the agent has no key that could."""


class Function:
    """Implements `OutsideAgent` with a function ``(task, endpoint)``; one that is not async runs on a thread.

    A thread cannot be stopped: when its time is over its keys are revoked, and its calls are refused.
    """

    def __init__(self, call: Callable[[Task, Endpoint], object], *, name: str | None = None) -> None:
        self._call = call
        self.id = f"function:{name or getattr(call, '__qualname__', type(call).__name__)}"

    def __call__(self, task: Task, endpoint: Endpoint) -> object:
        """Call the function itself."""
        return self._call(task, endpoint)

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task."""
        with crossing(AgentFailure, self.id):
            if inspect.iscoroutinefunction(self._call):
                return Ran(value=await self._call(task, endpoint))
            return Ran(value=await asyncio.to_thread(self._call, task, endpoint))


def agent(call: Callable[[Task, Endpoint], object]) -> Function:
    """Decorator: a function ``(task, endpoint)`` is an agent that can be run and recorded."""
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
        values = {"{task}": _prompt(task), "{base_url}": endpoint.base_url, "{model}": endpoint.model}
        arguments = [_filled(text, values) for text in self.arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
        with crossing(AgentFailure, self.id):
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env={**kept, **endpoint.environment, **self.environment},
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
        world = EnvironmentRef(id=self.agent.id, version="1", seed=task.seed)
        opened = await self.gateway.open(
            key, TaskRef(id=task.id, family=task.family, split=task.split), environment=world
        )
        endpoint = Endpoint(
            base_url=f"{self.url}{opened.path}/v1", key=opened.model_key, model=self.gateway.desk.serving.models[0]
        )
        outcome: Outcome | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                ran = await self.agent.run(_told(task), endpoint)
            await self.gateway.judge(key.id, await self._verdict(task, ran))
        except TimeoutError:
            outcome = Outcome(reason=StopReason.TIME_LIMIT, detail=f"the collector allows {self.timeout_s} s")
        except AgentFailure as failure:
            outcome = Outcome(reason=StopReason.AGENT_ERROR, detail=str(failure)[:2000])
        except VerifierFailure as failure:
            outcome = Outcome(reason=StopReason.VERIFIER_ERROR, detail=str(failure)[:2000])
        except asyncio.CancelledError:
            await self.gateway.seal(key.id, Outcome(reason=StopReason.CANCELLED, detail="the run was stopped"))
            raise
        return await self.gateway.seal(key.id, outcome)

    async def _verdict(self, task: Task, ran: Ran) -> Verdict:
        with crossing(VerifierFailure, f"verifying {task.id}"):
            found = self.verify(task, ran)
            judged = await found if inspect.isawaitable(found) else found
            if isinstance(judged, Verdict):
                return judged
            if isinstance(judged, bool):
                return Verdict(success=judged, verifier="function/1")
            return Verdict(success=None, score=float(judged), verifier="function/1")


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Placeholders replaced once; what is put in is not looked at again."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group()], text)


def _told(task: Task) -> Task:
    """The task as the agent gets it: of its data, which may hold the answer, the prompt alone."""
    return replace(task, data={"prompt": _prompt(task)})


def _prompt(task: Task) -> str:
    found = task.data.get("prompt")
    return found if isinstance(found, str) else task.id


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
