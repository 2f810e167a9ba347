"""The `bwrap` back-end: bubblewrap builds the box, for people who prefer a binary that others have reviewed.

It is given the same filter of system calls and the same limits as `ns`. A box is a folder of the host here: branching
copies it, its size is not capped by the kernel, and its path shows in the list of mounts. The proof says so.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

from kifu.errors import SandboxFailure
from kifu.sandbox import probes
from kifu.sandbox.contract import (
    LINK,
    WORK,
    BoxPolicy,
    Command,
    Export,
    Limits,
    Mount,
    Network,
    Proof,
    Ran,
    Reason,
    Wanted,
)
from kifu.sandbox.folders import FolderFiles
from kifu.sandbox.handles import Handles
from kifu.sandbox.ns.box import BASE_ENV
from kifu.sandbox.ns.filter import ARCHES, assembled
from kifu.sandbox.ns.server import FIRST_UID
from kifu.sandbox.selftest import SELF_TEST, run_self_test
from kifu.sandbox.tree import Tree
from kifu.sandbox.watching import GRACE_S, Sources, is_ready, watch, watchable
from kifu.sandbox.wire import write_all

_ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PYTHON = "/usr/bin/python3"
_INSTALL = "Install it: `apt-get install bubblewrap`, or `scripts/bubblewrap FOLDER` without root."


class BwrapBackend:
    """Boxes built by bubblewrap 0.8 or later.

    Args:
        program: path of ``bwrap``; empty searches PATH.
        slot: as for `NsBackend`.
    """

    def __init__(self, *, program: str = "", slot: int = 0) -> None:
        self._program = program or shutil.which("bwrap") or ""
        self._owner = FIRST_UID + slot if os.geteuid() == 0 else None
        self._proof: Proof | None = None
        self._boxes: list[BwrapBox] = []

    @property
    def name(self) -> str:
        """For records."""
        return "bwrap"

    def prove(self) -> Proof:
        """Attack a box; the answer is kept."""
        if self._proof is None:
            self._proof = self._prove()
        return self._proof

    def open(self, policy: BoxPolicy) -> "BwrapBox":
        """A folder with the policy's files."""
        files = FolderFiles(owner=self._owner)
        files.write(policy.base)
        box = BwrapBox(self._program, files, mounts=policy.mounts, owner=self._owner)
        self._boxes.append(box)
        return box

    def close(self) -> None:
        """Delete what is left."""
        for box in self._boxes:
            box.close()

    def _prove(self) -> Proof:
        problem = self._obstacle()
        if problem:
            return Proof(backend=self.name, problem=problem[0], remedy=problem[1])
        box = self.open(BoxPolicy(base=Tree(), limits=SELF_TEST))
        try:
            trial = box.run(Command(argv=("/bin/true",), limits=SELF_TEST))
            if trial.reason is not Reason.EXIT:
                return Proof(backend=self.name, problem=trial.message or f"a first call ended by {trial.reason}")
            return run_self_test(self.name, box, paths=(str(box.path),))
        finally:
            box.close()

    def _obstacle(self) -> tuple[str, str] | None:
        if not self._program or not os.access(self._program, os.X_OK):
            return f"there is no program `{self._program or 'bwrap'}`", _INSTALL
        if os.uname().machine not in ARCHES:
            return f"no table of system calls for {os.uname().machine}", "Use a machine with x86-64 or 64-bit ARM."
        if not Path(_PYTHON).exists():
            return f"its self-test needs {_PYTHON}", "Install Python there."
        if not shutil.which("prlimit"):
            return "there is no program `prlimit`", "Install util-linux."
        return None


class BwrapBox:
    """A folder of the host and how to call bubblewrap on it."""

    def __init__(self, program: str, files: FolderFiles, *, mounts: tuple[Mount, ...], owner: int | None) -> None:
        self._program = program
        self._files = files
        self._mounts = mounts
        self._owner = owner
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """Of its files on the host."""
        return self._files.path

    def run(self, command: Command) -> Ran:
        """Run a command in namespaces of its own."""
        with self._lock:
            return self._run(command)

    def probe(self, probe: tuple[str, ...], limits: Limits) -> Ran:
        """Let the box's own Python attack it; see `probes`."""
        source = Path(probes.__file__).read_text()
        return self.run(Command(argv=(_PYTHON, "-I", "-S", "-c", source, *probe[1:]), limits=limits))

    def branch(self) -> "BwrapBox":
        """A copy."""
        return BwrapBox(self._program, self._files.copy(), mounts=self._mounts, owner=self._owner)

    def write(self, tree: Tree) -> None:
        """As `Box.write`."""
        self._files.write(tree)

    def read(self, wanted: Wanted) -> Export:
        """As `Box.read`."""
        return self._files.read(wanted)

    def close(self) -> None:
        """Delete the folder."""
        self._files.remove()

    def _run(self, command: Command) -> Ran:
        start = time.monotonic()
        with Handles() as held:
            process, sources, alive = self._started(command, held)
            held.let_go(*sources.given)
            try:
                seen = watch(sources, command.limits, keeps_end=command.link is not None)
            except OSError:
                process.wait()
                raise
            is_ready(alive, GRACE_S)
            process.wait()
            _wait_for_the_last(bytes(seen.report))
        code = _exit_code(bytes(seen.report))
        reason = seen.broken or (Reason.EXIT if code is not None else Reason.SETUP_FAILED)
        return Ran(
            reason=reason,
            code=code if reason is Reason.EXIT else None,
            out=bytes(seen.out),
            err=bytes(seen.err) if reason is not Reason.SETUP_FAILED else b"",
            total_bytes=seen.total_bytes,
            wall_s=time.monotonic() - start,
            peak_bytes=seen.peak_bytes,
            message=seen.err[:500].decode("utf-8", "replace") if reason is Reason.SETUP_FAILED else "",
        )

    def _started(self, command: Command, held: Handles) -> tuple["subprocess.Popen[bytes]", Sources, int]:
        """What runs, what to watch, and the end of a pipe that closes with the last process of the box."""
        link: tuple[int, ...] = ()
        stop = None
        if command.link is not None:
            link, stop = (held.own(os.dup(command.link.write)),), held.own(os.dup(command.link.stop))
            command = replace(command, env=(*command.env, (LINK, str(link[0]))))
        (out, out_end), (err, err_end), (status, status_end), (alive, alive_end) = [held.pipe() for _ in range(4)]
        words = b"".join(word.encode() + b"\0" for word in self._arguments(command))
        arguments = held.own(_memory(words))
        stdin = held.own(_memory(command.stdin) if command.link is None else os.dup(command.link.read))
        rules = assembled(os.uname().machine, with_inet=command.network is Network.LOOPBACK)
        seccomp = held.own(_memory(rules))
        passwd = held.own(_memory(b"agent:x:1000:1000::/tmp:/bin/sh\n"))
        argv = [
            *_limited(command.limits),
            self._program,
            *("--seccomp", str(seccomp), "--json-status-fd", str(status_end), "--sync-fd", str(alive_end)),
            *("--ro-bind-data", str(passwd), "/etc/passwd", "--args", str(arguments)),
            *("--", *_counted(command.limits), *command.argv),
        ]
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=out_end,
            stderr=err_end,
            env={},
            pass_fds=[status_end, alive_end, seccomp, passwd, arguments, *link],
            start_new_session=True,
            user=self._owner,
            group=self._owner,
            extra_groups=[] if self._owner is not None else None,
        )
        held.shut(out_end, err_end, status_end, alive_end, stdin, seccomp, passwd, arguments, *link)
        sources = Sources(process=watchable(process), out=out, err=err, report=status, stop=stop)
        return process, sources, alive

    def _arguments(self, command: Command) -> list[str]:
        """What may not stand on a command line, because the box could read it there."""
        tmp = str(command.limits.tmp_bytes)
        words = [
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
        ]
        words += [
            "--cap-drop",
            "ALL",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--hostname",
            "box",
            "--ro-bind",
            "/usr",
            "/usr",
        ]
        for name in _ROOT_FOLDERS:
            path = Path(f"/{name}")
            if path.is_symlink():
                words += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                words += ["--ro-bind", str(path), str(path)]
        for path in (Path("/etc/ld.so.cache"), Path("/etc/alternatives")):
            if path.exists():
                words += ["--ro-bind", str(path), str(path)]
        for shown in self._mounts:
            words += ["--ro-bind", shown.source, shown.target]
        words += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            tmp,
            "--tmpfs",
            "/tmp",
            "--size",
            tmp,
            "--tmpfs",
            "/dev/shm",
        ]
        words += ["--bind", str(self.path), WORK, "--chdir", f"{WORK}/{command.cwd}".rstrip("/")]
        words += ["--remount-ro", "/dev", "--remount-ro", "/"]
        for name, value in {**BASE_ENV, **dict(command.env)}.items():
            words += ["--setenv", name, value]
        return words


def _limited(limits: Limits) -> list[str]:
    memory = [f"--as={limits.mem_process_bytes}"] if limits.mem_process_bytes is not None else []
    return [
        shutil.which("prlimit") or "prlimit",
        *memory,
        f"--cpu={limits.cpu_s}",
        f"--fsize={limits.file_bytes}",
        f"--nofile={limits.open_files}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
    ]


def _counted(limits: Limits) -> list[str]:
    """Set inside the box, where the processes of its own user namespace are counted; outside, all of the user's are."""
    return ["/usr/bin/prlimit", f"--nproc={limits.pids}", "--"]


def _memory(data: bytes) -> int:
    handle = os.memfd_create("given", os.MFD_CLOEXEC)
    write_all(handle, data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _exit_code(report: bytes) -> int | None:
    return _reported(report, "exit-code")


def _reported(report: bytes, name: str) -> int | None:
    for line in report.splitlines():
        found = json.loads(line)
        if name in found:
            return int(found[name])
    return None


def _wait_for_the_last(report: bytes) -> None:
    """Wait for the end of the box's process 1, which comes after that of all others.

    Its files are closed when it begins to end, and bubblewrap itself ends with the command: both can be while a process
    that the command left behind still runs.
    """
    first = _reported(report, "child-pid")
    if first is None:
        return
    try:
        handle = os.pidfd_open(first)
    except ProcessLookupError:
        return
    try:
        if not is_ready(handle, GRACE_S):
            raise SandboxFailure(f"a box did not end within {GRACE_S} s of its call; the machine may be out of memory")
    finally:
        os.close(handle)
