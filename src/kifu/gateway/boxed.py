"""An outside agent in a sandbox: a program that reaches its gateway and nothing else."""

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from kifu.envs import Task
from kifu.errors import AgentFailure, SandboxFailure, UsageError, crossing, nearest
from kifu.gateway import reach
from kifu.gateway.attempting import prompt_of
from kifu.gateway.endpoint import Endpoint, Ran
from kifu.gateway.outside import TASK, filled
from kifu.gateway.threads import on_own_thread
from kifu.sandbox import (
    BACKENDS,
    DEFAULT_REQUIRED,
    CallResult,
    Entry,
    Guarantee,
    Limits,
    Link,
    Mount,
    Network,
    Policy,
    Reason,
    RunTool,
    Tree,
    open_sandbox,
)
from kifu.sandbox.contract import check_mounts, start_problem
from kifu.sandbox.handles import Handles

REACH = ".kifu-reach.py"
"""Among the files of the box: the way to the gateway."""
PORT = 8800
"""Of the box's own loopback."""
PYTHON = "/usr/bin/python3"
LONGEST = 32 * os.sysconf("SC_PAGE_SIZE")
"""Bytes at which the kernel refuses an argument or a variable, the null character at its end among them."""


def limits_of_agent(*, seconds: float, memory_bytes: int, processes: int) -> Limits:
    """Limits of one attempt of an agent, which may say much, hold many connections and reserve more than it uses.

    Args:
        seconds: by the clock, and of CPU time for each process.
        memory_bytes: of all processes together.
        processes: and threads.
    """
    return Limits(
        wall_s=seconds,
        cpu_s=math.ceil(seconds),
        mem_total_bytes=memory_bytes,
        mem_process_bytes=None,
        pids=processes,
        open_files=512,
        output_kill_bytes=64 << 20,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedCommand:
    """Implements `OutsideAgent` with a program in a box of its own for every attempt.

    The box has the files given, read-only mounts, no network, and one way out: its gateway, at the address that
    ``OPENAI_BASE_URL`` and its like name. Nothing of this process's environment is handed on. In the arguments
    ``{task}`` (its prompt), ``{base_url}`` and ``{model}`` are replaced, without any shell.
    """

    arguments: tuple[str, ...]
    """The program by its absolute path in the box, and its arguments; it starts among its files."""
    files: Tree = field(default_factory=Tree)
    mounts: tuple[Mount, ...] = ()
    """Tool chains and libraries of the host, e.g. a virtual environment and what its interpreter stands on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: limits_of_agent(seconds=600.0, memory_bytes=1 << 30, processes=128))
    backends: tuple[str, ...] = ("ns",)
    require: frozenset[Guarantee] = DEFAULT_REQUIRED
    """What must be proved before a box is opened."""
    python: str = PYTHON
    """An interpreter in the box, for the way to the gateway."""

    def __post_init__(self) -> None:
        if not self.arguments or not self.arguments[0].startswith("/"):
            raise UsageError(
                f"a command in a box: found {list(self.arguments[:1])}, expected the program's absolute path in the box"
            )
        if any(item.path.split("/")[0] == REACH for item in self.files.entries):
            raise UsageError(f"files: {REACH} is the name of the way to the gateway; rename it")
        if not self.python.startswith("/"):
            raise UsageError(f"python: found {self.python!r}, expected the interpreter's absolute path in the box")
        if problem := start_problem((*self.arguments, self.python), tuple(self.environment.items())):
            raise UsageError(f"a command in a box: {problem}")
        check_mounts(self.mounts)
        for name in self.backends:
            if name not in BACKENDS:
                raise UsageError(f"no sandbox back-end `{name}`; {nearest(name, list(BACKENDS))}")

    @property
    def id(self) -> str:
        """The program's name."""
        return f"boxed:{Path(self.arguments[0]).name}"

    def check(self) -> None:
        """Look into a box, so that what is missing is known before the first attempt.

        Raises:
            SandboxUnavailable: no back-end on the list proves its guarantees here.
            UsageError: the box has no such interpreter, or no such program.
        """
        looks = "import os, sys; sys.exit(0 if os.path.isfile(sys.argv[1]) and os.access(sys.argv[1], os.X_OK) else 9)"
        tool = RunTool(name="look", argv=(self.python, "-I", "-c", looks, self.arguments[0]))
        policy = Policy(base=self.files, tools=(tool,), limits=self.limits, mounts=self.mounts, require=self.require)
        with open_sandbox(policy, backends=self.backends) as sandbox:
            found = sandbox.call(tool.name)
        if found.is_ok:
            return
        if found.reason is Reason.EXIT and found.code == 9:
            raise UsageError(
                f"a command in a box: the box has no program {self.arguments[0]}; show its folder by a mount, or let "
                "its file be executable"
            )
        raise UsageError(
            f"a command in a box: the box has no interpreter {self.python} that starts "
            f"({found.why or found.reason}); name one that it has, or show one by a mount"
        )

    async def run(self, task: Task, endpoint: Endpoint) -> Ran:
        """Attempt a task.

        Raises:
            AgentFailure: the program failed, or used up its limits.
            SandboxFailure: no back-end proves what is required, or the box broke.
        """
        address = urlsplit(endpoint.base_url)
        inside = Endpoint(base_url=f"http://127.0.0.1:{PORT}{address.path}", key=endpoint.key, model=endpoint.model)
        values = {"{task}": prompt_of(task), "{base_url}": inside.base_url, "{model}": inside.model}
        told = json.dumps({**task.data, "id": task.id})
        variables = {**inside.environment, TASK: told, **self.environment}
        way = Way(address.hostname or "", address.port or 80)
        arguments = [filled(text, values) for text in self.arguments]
        for text in (f"{TASK}={told}", *arguments):
            if (size := len(text.encode("utf-8", "surrogatepass"))) >= LONGEST:
                raise SandboxFailure(
                    f"{self.id}: the task {task.id} makes {size:,} bytes of one variable or argument, and a program "
                    f"can be given {LONGEST - 1:,} at most; shorten its prompt, or run the agent as a function"
                )
        with crossing(SandboxFailure, self.id):
            tool = RunTool(
                name="agent",
                argv=(self.python, "-I", REACH, str(PORT), *arguments),
                env=tuple(variables.items()),
                network=Network.LOOPBACK,
            )
            async with way.open() as link:
                result, backend = await on_own_thread(partial(self._called, tool, link), name=self.id)
        if way.lost:
            raise SandboxFailure(f"{self.id}: {way.lost} of its connections did not reach the gateway")
        return _ran(self.id, result, backend)

    def _called(self, tool: RunTool, link: Link) -> tuple[CallResult, str]:
        """On a thread, which the end of the link ends soon."""
        try:
            policy = Policy(
                base=self._files, tools=(tool,), limits=self.limits, mounts=self.mounts, require=self.require
            )
            sandbox = open_sandbox(policy, backends=self.backends)
            try:
                return sandbox.call(tool.name, link=link), sandbox.backend
            finally:
                sandbox.close()
        finally:
            for handle in (link.read, link.write, link.stop):
                os.close(handle)

    @property
    def _files(self) -> Tree:
        return Tree((*self.files.entries, Entry(path=REACH, data=Path(reach.__file__).read_bytes())))


class Way:
    """The host's side of the way to a gateway: connections that the box begins are carried to it.

    Args:
        host: of the gateway.
        port: of it.
    """

    def __init__(self, host: str, port: int) -> None:
        self.lost = 0
        """Connections that the gateway did not take."""
        self._address = host, port

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        """Carry while the block runs; what it gives belongs to the thread of the call, which closes it."""
        with Handles() as held:
            read, their_write = held.pipe()
            their_read, write = held.pipe()
            stop, alive = held.pipe()
            held.let_go(read, write)  # the streams close them
            ends, close = await reach.ends_of(read, write)
            held.let_go(their_read, their_write, stop, alive)
        streams = reach.Streams(*ends, opened=partial(asyncio.open_connection, *self._address))
        task = asyncio.create_task(streams.run())
        task.add_done_callback(lambda _: close())  # of one who speaks in no frames, nothing more is heard
        try:
            yield Link(read=their_read, write=their_write, stop=stop)
        finally:
            os.close(alive)  # which ends the call
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.lost = streams.lost


def _ran(name: str, result: CallResult, backend: str) -> Ran:
    output = result.out.decode("utf-8", "replace")
    if result.reason is Reason.SETUP_FAILED:
        raise SandboxFailure(f"{name}: the box could not start it: {result.why or result.message}")
    if not result.is_ok:
        how = f"status {result.code}" if result.reason is Reason.EXIT else str(result.reason)
        said = result.err.decode("utf-8", "replace")[-1000:].strip() or "it said nothing"
        raise AgentFailure(f"{name} ended with {how}: {said}")
    return Ran(output=output, facts={"sandbox": backend})
