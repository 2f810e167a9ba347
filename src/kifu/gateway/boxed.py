"""An outside agent in a sandbox: a program that reaches its gateway and nothing else."""

import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from kifu.envs import Task
from kifu.errors import AgentFailure, SandboxFailure, UsageError, nearest
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
    Mount,
    Network,
    Policy,
    Reason,
    RunTool,
    Tree,
    open_sandbox,
)

REACH = ".kifu-reach.py"
"""Among the files of the box: the way to the gateway."""
PORT = 8800
"""Of the box's own loopback."""
CONNECTIONS = 32
"""Of one attempt at once."""
CONNECT_S = 10.0
"""For the gateway to take a connection."""
_HANDLE = struct.Struct("i")
PYTHON = "/usr/bin/python3"


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
    limits: Limits = field(default_factory=lambda: Limits(wall_s=600.0, cpu_s=600))
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
        for name in self.backends:
            if name not in BACKENDS:
                raise UsageError(f"no sandbox back-end `{name}`; {nearest(name, list(BACKENDS))}")

    @property
    def id(self) -> str:
        """The program's name."""
        return f"boxed:{Path(self.arguments[0]).name}"

    def check(self) -> None:
        """Open an empty box, so that what is missing is known before the first attempt.

        Raises:
            SandboxUnavailable: no back-end on the list proves its guarantees here.
        """
        open_sandbox(
            Policy(limits=self.limits, mounts=self.mounts, require=self.require), backends=self.backends
        ).close()

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
        tool = RunTool(
            name="agent",
            argv=(self.python, "-I", REACH, str(PORT), *(filled(text, values) for text in self.arguments)),
            env=tuple(variables.items()),
            network=Network.LOOPBACK,
        )
        way = Way(address.hostname or "", address.port or 80)
        try:
            result, backend = await on_own_thread(partial(self._called, tool, way.theirs), name=self.id)
        finally:
            way.close()
        return _ran(self.id, result, backend)

    def _called(self, tool: RunTool, link: socket.socket) -> tuple[CallResult, str]:
        """On a thread, which goes on to the end of the box when nobody waits any more."""
        with link:
            policy = Policy(
                base=self._files, tools=(tool,), limits=self.limits, mounts=self.mounts, require=self.require
            )
            sandbox = open_sandbox(policy, backends=self.backends)
            try:
                return sandbox.call("agent", link=link.fileno()), sandbox.backend
            finally:
                sandbox.close()

    @property
    def _files(self) -> Tree:
        way = Entry(path=REACH, data=Path(reach.__file__).read_bytes())
        return Tree((*(item for item in self.files.entries if item.path != REACH), way))


class Way:
    """The host's side of the way to a gateway: every socket that arrives is joined to a connection of its own.

    What arrives was sent by the program, so anything but a stream socket is closed, and so is what is too much. The
    program may keep copies of what it sends and let them block, which blocks the threads here and nothing else.

    Args:
        host: of the gateway.
        port: of it.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._ours, self.theirs = socket.socketpair()
        self._open = set[socket.socket]()
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End every connection, and with the way the program."""
        with self._lock:
            self._is_closed = True
            for one in (self._ours, *self._open):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        room = socket.CMSG_LEN(_HANDLE.size)
        with self._ours, suppress(OSError):
            while True:
                data, extra, _, _ = self._ours.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
                for _level, _kind, handles in extra:
                    for (handle,) in _HANDLE.iter_unpack(handles[: len(handles) - len(handles) % _HANDLE.size]):
                        self._take(handle)
                if not data:
                    return

    def _take(self, handle: int) -> None:
        near = _stream(handle)
        if near is None:
            return
        try:
            far = socket.create_connection(self._address, timeout=CONNECT_S)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            if self._is_closed or len(self._open) >= 2 * CONNECTIONS:
                near.close()
                far.close()
                return
            self._open |= {near, far}
        reach.join(near, far, ended=lambda: self._forget(near, far))

    def _forget(self, *ended: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(ended)


def _stream(handle: int) -> socket.socket | None:
    """The descriptor as a stream socket; closed where it is anything else."""
    try:
        found = socket.socket(fileno=handle)
    except OSError:
        os.close(handle)
        return None
    if (found.family, found.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
        found.close()
        return None
    found.setblocking(True)
    return found


def _ran(name: str, result: CallResult, backend: str) -> Ran:
    output = result.out.decode("utf-8", "replace")
    if result.reason is Reason.SETUP_FAILED:
        raise SandboxFailure(f"{name}: the box could not start it: {result.message or result.text[-500:]}")
    if not result.is_ok:
        how = f"status {result.code}" if result.reason is Reason.EXIT else str(result.reason)
        said = result.err.decode("utf-8", "replace")[-1000:].strip() or "it said nothing"
        raise AgentFailure(f"{name} ended with {how}: {said}")
    return Ran(output=output, facts={"sandbox": backend})
