"""A box of the `ns` back-end, as the supervisor holds it."""

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kifu.errors import SandboxFailure
from kifu.sandbox.contract import LINK, BoxPolicy, Command, Denied, Export, Limits, Network, Ran, Reason, Wanted
from kifu.sandbox.folders import received
from kifu.sandbox.handles import Handles
from kifu.sandbox.ns.server import ForkServer
from kifu.sandbox.tree import Tree
from kifu.sandbox.watching import Sources, Watched, is_ready, kill, watch
from kifu.sandbox.wire import LINK_NUMBER, write_all

BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
_JOB_S = 60.0

Result = TypeVar("Result")


class NsBox:
    """Files in memory, shown by an overlay; a process exists only while a call runs.

    Args:
        server: the fork server that holds it.
        number: its number there.
        policy: what it was made with.
        without: protections left out of its calls. For controls of tests alone.
    """

    def __init__(
        self, server: ForkServer, number: int, *, policy: BoxPolicy, without: frozenset[str] = frozenset()
    ) -> None:
        self._server = server
        self._number = number
        self._policy = policy
        self._without = without
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, command: Command) -> Ran:
        """Run a command to its end, in namespaces of its own."""
        return self._run(command, probe=())

    def probe(self, probe: tuple[str, ...], limits: Limits) -> Ran:
        """Let the fork server's own code attack the box; see `probes`."""
        return self._run(Command(argv=("/probe",), limits=limits), probe=probe)

    def branch(self, *, is_ready: bool = False) -> "NsBox":
        """A new box that begins as this one stands.

        Args:
            is_ready: make what it writes to at once; otherwise its first call does.
        """
        number = self._server.number()
        with self._lock:
            self._ask({"op": "branch", "box": number, "of": self._number, "ready": is_ready})
        return NsBox(self._server, number, policy=self._policy, without=self._without)

    def write(self, tree: Tree) -> None:
        """Put files in."""
        request = {"op": "write", "box": self._number, "careful": "safe_paths" not in self._without}
        with self._lock:
            self._check_open()
            send_tree(self._server, request, tree)

    def read(self, wanted: Wanted) -> Export:
        """Take files out."""
        request = {
            "op": "read",
            "box": self._number,
            "patterns": list(wanted.patterns),
            "max_files": wanted.max_files,
            "max_bytes": wanted.max_bytes,
            "max_visited": wanted.max_visited,
            "with_data": wanted.with_data,
            "careful": "no_follow" not in self._without,
        }
        with self._lock:
            self._check_open()
            return _job(self._server, request, received, is_input=False)

    def used(self) -> tuple[int, int]:
        """Bytes and inodes it has written, snapshots below it included."""
        answer = self._ask({"op": "used", "box": self._number})
        found = answer["used"]
        assert isinstance(found, list)
        return int(found[0]), int(found[1])

    def close(self) -> None:
        """Give it up; closing twice is fine."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if self._server.is_alive:
                    self._server.ask({"op": "drop", "box": self._number})

    def _ask(self, message: dict[str, object]) -> dict[str, object]:
        self._check_open()
        answer, _ = self._server.ask(message)
        return answer

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxFailure("this box is closed; open another one or fork a snapshot")

    def _run(self, command: Command, probe: tuple[str, ...]) -> Ran:
        with self._lock:
            self._check_open()
            start = time.monotonic()
            request = self._request(command, probe)
            with Handles() as held:
                source = held.own(_source_of(command))
                out, out_end = held.pipe()
                err, err_end = held.pipe()
                report, report_end = held.pipe()
                stop = None
                theirs = [source, out_end, err_end, report_end]
                if command.link is not None:
                    stop = held.own(os.dup(command.link.stop))
                    theirs.append(held.own(os.dup(command.link.write)))
                pid, process = self._server.start(request, tuple(theirs))
                sources = Sources(process=process, out=out, err=err, report=report, stop=stop)
                held.let_go(*sources.given)
            try:
                seen = watch(sources, command.limits, off=self._without, keeps_end=stop is not None)
            except OSError:
                self._server.ask({"op": "reap", "pid": pid})
                raise
            ended, _ = self._server.ask({"op": "reap", "pid": pid})
            return _ran(seen, ended, wall_s=time.monotonic() - start)

    def _request(self, command: Command, probe: tuple[str, ...]) -> dict[str, object]:
        env = {**BASE_ENV, **dict(command.env)}
        if command.link is not None:
            env[LINK] = str(LINK_NUMBER)
        if "clean_env" in self._without:
            env = {**os.environ, **env}
        limits = command.limits
        return {
            "op": "call",
            "box": self._number,
            "argv": list(command.argv),
            "env": env,
            "cwd": command.cwd,
            "network": str(Network(command.network)),
            "warm": command.is_warm,
            "probe": list(probe),
            "without": sorted(self._without),
            "limits": {
                "tmp_bytes": limits.tmp_bytes,
                "mem_process_bytes": limits.mem_process_bytes,
                "pids": limits.pids,
                "cpu_s": limits.cpu_s,
                "file_bytes": limits.file_bytes,
                "open_files": limits.open_files,
            },
        }


def send_tree(server: ForkServer, request: dict[str, object], tree: Tree) -> None:
    """Stream a tree to a job of the fork server.

    Raises:
        Denied: the job refused one of its paths.
    """

    def send(handle: int) -> None:
        try:
            for part in tree.stream():
                write_all(handle, part)
        except BrokenPipeError:
            return  # the job has stopped reading, and its report says why

    _job(server, request, send, is_input=True)


def _job(server: ForkServer, request: dict[str, object], work: Callable[[int], Result], *, is_input: bool) -> Result:
    """Let the fork server read from, or write to, a pipe whose other end is given to ``work``."""
    with Handles() as held:
        read_end, write_end = held.pipe()
        report, report_end = held.pipe()
        theirs, ours = (read_end, write_end) if is_input else (write_end, read_end)
        pid, process = server.start(request, (theirs, report_end))
        held.own(process)
        held.shut(theirs, report_end)
        result, broken = None, None
        try:
            result = work(ours)
        except ValueError as error:
            broken = error
        held.shut(ours)
        if not is_ready(process, _JOB_S):
            kill(process)
        outcome = os.read(report, 1 << 16)
        server.ask({"op": "reap", "pid": pid})
    _check_report(outcome, what=str(request["op"]))
    if broken is not None:
        raise SandboxFailure(f"the sandbox's answer cannot be read: {broken}") from broken
    return result  # type: ignore[return-value]  # set, since nothing broke


def _check_report(report: bytes, *, what: str) -> None:
    found = json.loads(report) if report else {"error": "it ended without a report"}
    if "refused" in found:
        raise Denied(str(found["refused"]))
    if "error" in found:
        raise SandboxFailure(f"the sandbox could not {what} files: {found['error']}")


def _source_of(command: Command) -> int:
    """Its standard input."""
    if command.link is not None:
        return os.dup(command.link.read)
    if not command.stdin:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    source = os.memfd_create("stdin", os.MFD_CLOEXEC)
    write_all(source, command.stdin)
    os.lseek(source, 0, os.SEEK_SET)
    return source


def _ran(seen: Watched, ended: dict[str, object], *, wall_s: float) -> Ran:
    report = json.loads(seen.report) if seen.report else {}
    code, number = None, None
    if seen.broken is not None:
        reason = seen.broken
    elif "status" in report:
        exit_code = os.waitstatus_to_exitcode(int(report["status"]))
        reason = Reason.EXIT if exit_code >= 0 else Reason.SIGNAL
        code, number = (exit_code, None) if exit_code >= 0 else (None, -exit_code)
    elif report:
        reason = Reason.SETUP_FAILED
    else:
        status = os.waitstatus_to_exitcode(int(str(ended["status"])))
        reason, number = Reason.SIGNAL, max(1, -status)
    return Ran(
        reason=reason,
        code=code,
        signal=number,
        out=bytes(seen.out),
        err=bytes(seen.err),
        total_bytes=seen.total_bytes,
        wall_s=wall_s,
        cpu_s=float(str(ended["cpu_s"])),
        peak_bytes=max(int(str(ended["peak_bytes"])), seen.peak_bytes),
        message=str(report.get("error", "")),
    )
