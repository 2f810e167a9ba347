"""Two worlds in which attacks run, root's and an ordinary user's, and what the host holds that no box may reach."""

import base64
import ctypes
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

USER = 61_234
PYTHON = "/usr/bin/python3"
MARKER = f"victim-{os.getpid()}"

MODES = ("root", "user") if os.geteuid() == 0 else ("user",)

PRELUDE = """
import ctypes, errno, json, mmap, os, resource, signal, socket, subprocess, sys, threading, time
FACTS = json.loads(os.environ["FACTS"])
libc = ctypes.CDLL(None, use_errno=True)
HOME = os.getcwd()
def errno_of(number, *arguments):
    "0 when a system call succeeds, else its error"
    return 0 if libc.syscall(number, *arguments) >= 0 else ctypes.get_errno()
def read(path):
    with open(path, "rb") as source:
        return source.read(100000)
def status(name):
    return dict(line.split(":\t", 1) for line in read("/proc/self/status").decode().splitlines())[name]
def victim():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and FACTS["marker"].encode() in read(f"/proc/{name}/cmdline"):
            return int(name)
    raise OSError(errno.ESRCH, "no victim")
def clean():
    subprocess.run(["/bin/sh", "-c", f"rm -rf {HOME}/* /tmp/* /dev/shm/*"], check=True)
def outcome(body):
    try:
        result = body()
    except (OSError, MemoryError) as error:
        return ["LOST", repr(error)]
    return ["WON", repr(result)[:200]] if result else ["LOST", ""]
ATTACKS = {}
"""
"""An attack is the body of a function that returns what it got; nothing, or an error of the system, means: held."""

ONE = """
sys.stdout.write(outcome(ATTACKS["it"])[0])
sys.stdout.flush()
"""
ALL = """
results = {}
for name, body in ATTACKS.items():
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = outcome(body)
        except Exception as error:
            answer = ["BROKEN", repr(error)]
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    answer = b""
    while part := os.read(read_end, 65536):
        answer += part
    os.close(read_end)
    _, ended = os.waitpid(pid, 0)
    results[name] = json.loads(answer) if answer else ["KILLED", str(os.waitstatus_to_exitcode(ended))]
    if CLEAN:
        clean()
sys.stdout.write(json.dumps(results))
sys.stdout.flush()
"""


def program(bodies: Mapping[str, str], *, end: str) -> str:
    """The source of attacks, as functions."""
    parts = [PRELUDE]
    for number, (name, body) in enumerate(bodies.items()):
        text = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        parts.append(f"def attack_{number}():\n{text}\nATTACKS[{name!r}] = attack_{number}\n")
    return "".join([*parts, end])


@dataclass(frozen=True)
class Outcome:
    """How one attack went."""

    reason: str
    code: int | None
    out: bytes
    err: str
    wall_s: float
    signal: int | None

    @property
    def is_won(self) -> bool:
        return b"WON" in self.out

    @property
    def is_lost(self) -> bool:
        """It ran to its end and got nothing; one that crashes has shown nothing."""
        return self.out.endswith(b"LOST") and self.code == 0


@dataclass
class World:
    """A supervisor that runs as one user."""

    mode: str
    process: "subprocess.Popen[str]"
    facts: dict[str, Any] = field(default_factory=dict)

    def ask(self, op: str, **request: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, "facts": self.facts, **request}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def attack(self, *bodies: str, without: str = "", **more: object) -> Outcome:
        """Run attacks one after the other in one box; the outcome of the last."""
        codes = [program({"it": body}, end=ONE) for body in bodies]
        answer = self.ask("run", codes=codes, without=without.split(), **more)
        return Outcome(
            reason=answer["reason"],
            code=answer["code"],
            out=base64.b64decode(answer["out"]),
            err=answer["err"] + answer["message"],
            wall_s=answer["wall_s"],
            signal=answer["signal"],
        )


@dataclass
class Bouts:
    """Many attacks at once: all of a table in one call, their controls in one call for each set of protections."""

    world: World
    done: dict[tuple[int, str], dict[str, list[str]]] = field(default_factory=dict)

    def fight(self, table: Mapping[str, tuple[str, str]], name: str, *, ends: str = "LOST", **more: object) -> None:
        """An attack of a table is held, and succeeds when the protections it is up against are left out."""
        without, _ = table[name]
        held = self._round(table, "", **more)[name]
        assert held[0] == ends, f"the attack succeeded or did not run: {held}"
        control = self._round(table, without, **more)[name]
        assert control[0] == "WON", f"without {without} the attack must succeed, or it shows nothing: {control}"

    def _round(self, table: Mapping[str, tuple[str, str]], without: str, **more: object) -> dict[str, list[str]]:
        key = id(table), without
        if key not in self.done:
            bodies = {name: body for name, (those, body) in table.items() if not without or those == without}
            clean = f"CLEAN = {'limits' in more}\n"
            codes = [*more.pop("first", ()), program(bodies, end=clean + ALL)]  # type: ignore[misc]
            answer = self.world.ask("run", codes=codes, without=without.split(), **more)
            out = base64.b64decode(answer["out"])
            assert answer["reason"] == "exit", (answer, out[-500:])
            assert out, answer
            self.done[key] = json.loads(out)
        return self.done[key]


class Planted:
    """What the host holds: a readable file, private ones, sockets, shared memory."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        folder.chmod(0o755)
        self.file = folder / "readable"
        self.file.write_text("the host's secret")
        self.file.chmod(0o644)
        self.writable = folder / "writable"
        self.writable.write_text("as it was")
        self.writable.chmod(0o666)
        self.path_socket = folder / "socket"
        self.abstract = f"kifu-attack-{os.getpid()}"
        self.tcp = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (str(self.path_socket), f"\0{self.abstract}"):
            listener = held.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(64)
        self.path_socket.chmod(0o777)
        libc = ctypes.CDLL(None)
        self.segment = libc.shmget(0, 4096, 0o1666)
        held.callback(libc.shmctl, self.segment, 0, None)
        self.folder = folder

    def facts(self, mode: str, pid: int) -> dict[str, Any]:
        private = self.folder / f"private-{mode}"
        private.write_text("only its owner's")
        private.chmod(0o600)
        if mode == "user" and os.geteuid() == 0:
            os.chown(private, USER, USER)
        return {
            "file": str(self.file),
            "folder": str(self.folder),
            "writable": str(self.writable),
            "private": str(private),
            "path_socket": str(self.path_socket),
            "abstract": self.abstract,
            "port": self.tcp.getsockname()[1],
            "segment": self.segment,
            "pid": pid,
            "host": socket.gethostname(),
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "kernel": os.uname().release,
            "marker": MARKER,
        }


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with ExitStack() as held:
        folder = Path(f"/var/tmp/kifu-attack-{os.getpid()}")
        folder.mkdir()
        held.callback(subprocess.run, ["rm", "-rf", str(folder)], check=False)
        yield Planted(folder, held)


def start_driver(mode: str) -> "subprocess.Popen[str]":
    uid = USER if mode == "user" and os.geteuid() == 0 else 0
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("driver.py")), str(uid), PYTHON],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KIFU_TEST_SECRET": "the supervisor's"},
        cwd="/",
    )


@pytest.fixture(scope="session", params=MODES)
def world(request: pytest.FixtureRequest, planted: Planted) -> Iterator[World]:
    assert Path(PYTHON).exists(), f"the attacks are Python programs; install {PYTHON}"
    with start_driver(request.param) as process:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["pid"]
        yield World(mode=request.param, process=process, facts=planted.facts(request.param, pid))
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


@pytest.fixture(scope="session")
def bouts(world: World) -> Bouts:
    return Bouts(world)


Duel = Callable[..., None]


@pytest.fixture
def duel(world: World) -> Duel:
    """An attack is held, and succeeds when the protections it is up against are left out."""

    def fight(*bodies: str, without: str, ends: str = "", **more: Any) -> None:  # noqa: ANN401 - sent on as JSON
        held = world.attack(*bodies, **more)
        assert not held.is_won, f"the attack succeeded: {held}"
        assert held.reason == ends if ends else held.is_lost, f"the attack did not run as it should: {held}"
        control = world.attack(*bodies, without=without, **more)
        assert control.is_won, f"without {without} the attack must succeed, or it shows nothing: {control}"

    return fight
