"""The supervisor's end of a fork server: starts it, speaks to it, ends it."""

import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from kifu.errors import SandboxFailure
from kifu.sandbox import globs, probes, wire
from kifu.sandbox.contract import Mount
from kifu.sandbox.ns import call, files, filter, kernel, launcher, merging, rootfs, sheets, zygote

FIRST_UID = 200_000
"""Users nobody is, one per slot, for fork servers that root starts."""
_FIRST_STAGE: tuple[ModuleType, ...] = (kernel, launcher)
_SECOND_STAGE: tuple[ModuleType, ...] = (
    wire, globs, probes, kernel, filter, launcher, rootfs, merging, sheets, files, call, zygote,
)  # fmt: skip
_ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_START_S = 30.0

BOOT = """
import json, os, socket, sys, types
sock = socket.socket(fileno=int(sys.argv[1]))
def take(count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
message = json.loads(take(int.from_bytes(take(4), "big")))
for name, source in message["modules"]:
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
        package.__path__ = []
    module = types.ModuleType(name)
    sys.modules[name] = module
    setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
module.main(sock, message["config"])
"""
"""Reads the program of a stage from the supervisor: no file of the library is opened by whoever runs it."""


class StartError(SandboxFailure):
    """A fork server that did not come up.

    Args:
        step: where it stopped.
        errno: the kernel's answer, where there was one.
        text: for people.
    """

    def __init__(self, step: str, errno: int | None, text: str) -> None:
        self.step, self.errno, self.text = step, errno, text
        super().__init__(f"the sandbox's fork server stopped at `{step}`: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What a fork server is started with; those of one kind share one."""

    mounts: tuple[Mount, ...] = ()
    interpreter: str = ""
    """Python 3.11 or later that runs it; empty for this process's own."""
    preload: tuple[str, ...] = ()
    """Modules it imports for warm commands."""
    path: tuple[str, ...] = ()
    """Folders they come from, under the name they have in a box."""
    links: tuple[tuple[str, str], ...] = ()
    """Names at the root of every box, and the folders of the box they lead to."""
    slot: int = 0
    """Fork servers of root with different slots run as different users."""
    state_bytes: int = 1 << 20
    without: frozenset[str] = field(default_factory=frozenset)
    """Protections of the fork server left out. For controls of tests alone."""


class ForkServer:
    """A running fork server."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._numbers = 0
        self._is_lost = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock = ours
        interpreter, prefix = _interpreter(spec.interpreter)
        errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            self._process = _spawn(interpreter, theirs, errors)
            theirs.close()
            self._bring_up(interpreter, prefix, errors=errors)
        except BaseException:
            self._end()
            raise
        finally:
            os.close(errors)
            theirs.close()

    @property
    def pid(self) -> int:
        """Of its first stage, which stays as a watch."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still answers."""
        is_ours = self._owner == os.getpid() and self._sock.fileno() >= 0
        return is_ours and not self._is_lost and self._process.poll() is None

    def number(self) -> int:
        """A number nothing else of this fork server has."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def ask(self, message: dict[str, object], handles: tuple[int, ...] = ()) -> tuple[dict[str, object], list[int]]:
        """Send a request and take its answer.

        Raises:
            SandboxFailure: it is gone, or it could not do it.
        """
        if self._owner != os.getpid():
            raise SandboxFailure(
                "this process is a fork of the one that started the sandbox; open another sandbox here"
            )
        with self._lock:
            try:
                wire.send(self._sock, message, handles)
                answer, given = wire.receive(self._sock)
            except OSError as error:
                self._is_lost = True
                raise SandboxFailure(f"the sandbox's fork server is gone ({error}); its boxes are lost") from error
        if answer is None:
            self._is_lost = True
            raise SandboxFailure("the sandbox's fork server is gone; its boxes are lost")
        if "error" in answer:
            raise SandboxFailure(f"the sandbox could not {message['op']}: {answer['error']}")
        return answer, given

    def start(self, message: dict[str, object], handles: tuple[int, ...]) -> tuple[object, int]:
        """Let it start a process; gives its number there, and a descriptor that tells its end.

        Raises:
            SandboxFailure: as `ask`, or nobody could watch the process, which is ended then.
        """
        answer, given = self.ask(message, handles)
        if not given:
            self.ask({"op": "end", "pid": answer["pid"]})
            raise SandboxFailure(
                f"the sandbox could not {message['op']}: this process has no descriptor left; raise its limit "
                "(`ulimit -n`) or run fewer boxes at once"
            )
        return answer["pid"], given[0]

    def close(self) -> None:
        """End it, with every process of every box."""
        if self._owner == os.getpid():
            self._end()
        else:
            self._sock.close()

    def _end(self) -> None:
        self._sock.close()
        process = getattr(self, "_process", None)
        if process is None:
            return
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _bring_up(self, interpreter: str, prefix: str, *, errors: int) -> None:
        first, second = _configs(self.spec, interpreter, prefix)
        self._sock.settimeout(_START_S)
        try:
            wire.send(self._sock, {"modules": _sources(_FIRST_STAGE), "config": first})
            wire.send(self._sock, {"modules": _sources(_SECOND_STAGE), "config": second})
            answer, _ = wire.receive(self._sock)
        except OSError as error:
            raise StartError("start", error.errno, f"{error}") from error
        self._sock.settimeout(None)
        if answer is None:
            raise StartError("start", None, f"{interpreter} ended before it was ready: {_text_of(errors)[-500:]}")
        if "error" in answer:
            failure = answer["error"]
            assert isinstance(failure, dict)
            raise StartError(str(failure["step"]), failure["errno"], str(failure["text"]))


def _spawn(interpreter: str, theirs: socket.socket, errors: int) -> "subprocess.Popen[bytes]":
    argv = [interpreter, "-I", "-S", "-c", BOOT, str(theirs.fileno())]
    try:
        return subprocess.Popen(
            argv,
            pass_fds=[theirs.fileno()],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise StartError("interpreter", error.errno, f"{interpreter}: {error.strerror}") from error


def _interpreter(wanted: str) -> tuple[str, str]:
    """The interpreter by its real path, and the folder its library stands in."""
    if wanted:
        real = os.path.realpath(wanted)
        return real, str(Path(real).parent.parent)
    own = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(own), os.path.realpath(sys.base_prefix)


def _configs(spec: ServerSpec, interpreter: str, prefix: str) -> tuple[dict[str, object], dict[str, object]]:
    """What the two stages are told."""
    links = [(name, str(Path(f"/{name}").readlink())) for name in _ROOT_FOLDERS if Path(f"/{name}").is_symlink()]
    plain = [f"/{name}" for name in _ROOT_FOLDERS if Path(f"/{name}").is_dir() and not Path(f"/{name}").is_symlink()]
    system = ["/usr", *plain]
    extra = ["/etc/alternatives"] if Path("/etc/alternatives").is_dir() else []
    folders = [*system, *extra, *(mount.source for mount in spec.mounts)]
    image = [
        *enumerate([*system, *extra]),
        *((len(system) + len(extra) + i, m.target) for i, m in enumerate(spec.mounts)),
    ]
    own = [*enumerate(system)]
    if not any(f"{prefix}/".startswith(f"{folder}/") for folder in system):
        own.append((len(folders), prefix))
        folders.append(prefix)
    shared: dict[str, object] = {"links": links, "without": sorted(spec.without)}
    first = {
        **shared,
        "folders": folders,
        "interpreter_folders": own,
        "interpreter": interpreter,
        "boot": BOOT,
        "uid": FIRST_UID + spec.slot,
        "supervisor": os.getpid(),
        "state_bytes": spec.state_bytes,
        "state_inodes": 1 << 16,
    }
    second = {**shared, "links": [*links, *spec.links]}
    return first, {**second, "image": image, "preload": spec.preload, "path": spec.path}


def _sources(modules: tuple[ModuleType, ...]) -> list[tuple[str, str]]:
    return [(module.__name__, Path(str(module.__file__)).read_text()) for module in modules]


def _text_of(handle: int) -> str:
    return os.pread(handle, 4000, 0).decode("utf-8", "replace")
