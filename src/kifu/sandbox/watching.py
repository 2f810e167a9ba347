"""Watching one call from outside: its output, its time, its memory, its end."""

# On the path of every call.
# ruff: noqa: PTH123, PTH208

import math
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from kifu.errors import SandboxFailure
from kifu.sandbox.contract import Limits, Reason

TICK_S = 0.02
GRACE_S = 30.0
"""For the kernel to end what was killed; beyond it the machine is in trouble."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)
"""A process has ended, or shows itself to nobody, which the self-test finds out. Anything else is a lack of our own."""


@dataclass(kw_only=True)
class Watched:
    """What was seen."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    total_bytes: int = 0
    broken: Reason | None = None
    """The limit the call broke and was killed for."""
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Descriptors of a call. All are closed by `watch`."""

    process: int
    """A pidfd that becomes readable when every process of the call has ended."""
    out: int
    err: int
    report: int | None = None
    stop: int | None = None
    """Readable or hung up: the call is to be killed."""

    @property
    def given(self) -> tuple[int, ...]:
        """All of them."""
        wanted = (self.process, self.out, self.err, self.report, self.stop)
        return tuple(handle for handle in wanted if handle is not None)


def watch(sources: Sources, limits: Limits, *, off: frozenset[str] = frozenset(), keeps_end: bool = False) -> Watched:
    """Read until the call has ended; kill it when it breaks a limit.

    Args:
        sources: of the call.
        limits: to hold it to.
        off: ``wall_clock``, ``output_limit``, ``memory_watch``: not to do. For controls of tests alone.
        keeps_end: of the output, instead of its beginning.
    """
    try:
        watched = _Call(sources, limits, off, keeps_end=keeps_end)
        watched.follow()
    except OSError:  # e.g. no descriptor left: what cannot be watched must not run
        kill(sources.process)
        raise
    finally:
        for handle in sources.given:
            os.close(handle)
    return watched.seen


class _Call:
    def __init__(self, sources: Sources, limits: Limits, off: frozenset[str], *, keeps_end: bool) -> None:
        self.seen = Watched()
        self._keeps_end = keeps_end
        self._sources = sources
        self._limits = limits
        self._off = off
        self._into = {sources.out: self.seen.out, sources.err: self.seen.err}
        if sources.report is not None:
            self._into[sources.report] = self.seen.report
        self._reading = set(self._into)
        self._poll = select.poll()
        for handle in (sources.process, *self._into):
            os.set_blocking(handle, False)
            self._poll.register(handle, select.POLLIN)
        if sources.stop is not None:
            self._poll.register(sources.stop, select.POLLIN)
        self._pid = None if "memory_watch" in off else pid_of(sources.process)
        now = time.monotonic()
        self._deadline = now + limits.wall_s
        self._next_look = now + TICK_S

    def follow(self) -> None:
        """Until the call has ended."""
        is_over = False
        while not is_over:
            now = time.monotonic()
            if self.seen.broken is None:
                self._look_at_memory(now)
            if now >= self._deadline:
                self._overdue(now)
            ready = {handle for handle, _ in self._poll.poll(self._patience_ms(now))}
            for handle in ready & self._reading:
                if not self._read(handle):
                    self._poll.unregister(handle)
                    self._reading.discard(handle)
            if self._is_flood and self.seen.broken is None:
                self._break(Reason.OUTPUT_LIMIT)
            if self._sources.stop in ready:
                self._stop(self._sources.stop)
            is_over = self._sources.process in ready
        if self.seen.broken is None:
            self._drain()
            if self._is_flood:  # it ended before it could be killed; what is too much does not depend on who was faster
                self.seen.broken = Reason.OUTPUT_LIMIT

    @property
    def _is_flood(self) -> bool:
        return self.seen.total_bytes > self._limits.output_kill_bytes and "output_limit" not in self._off

    def _patience_ms(self, now: float) -> int:
        until = self._deadline
        if self._pid is not None and self.seen.broken is None:
            until = min(until, self._next_look)
        return max(1, math.ceil((until - now) * 1000))

    def _look_at_memory(self, now: float) -> None:
        if self._pid is None or now < self._next_look:
            return
        self._next_look = now + TICK_S
        used = memory_of(self._pid, self._limits.mem_total_bytes)
        self.seen.peak_bytes = max(self.seen.peak_bytes, used)
        if used > self._limits.mem_total_bytes:
            self._break(Reason.MEM_LIMIT)

    def _overdue(self, now: float) -> None:
        if self.seen.broken is not None:
            raise SandboxFailure(f"a killed call did not end within {GRACE_S} s; the machine may be out of memory")
        if "wall_clock" in self._off:
            self._deadline = now + GRACE_S
        else:
            self._break(Reason.TIMEOUT)

    def _stop(self, handle: int | None) -> None:
        """Whoever started the call has no use for it any more."""
        assert handle is not None
        self._poll.unregister(handle)
        if self.seen.broken is None:
            self._break(Reason.TIMEOUT)

    def _break(self, reason: Reason) -> None:
        """Kill the call; what it had written by then is all that is kept, however long its end takes."""
        self.seen.broken = reason
        self._deadline = time.monotonic() + GRACE_S
        kill(self._sources.process)
        for handle in self._reading:
            if reason is not Reason.OUTPUT_LIMIT:
                with suppress(BlockingIOError):
                    self._read(handle)
            self._poll.unregister(handle)
        self._reading.clear()

    def _drain(self) -> None:
        """What the call wrote before it ended; a pipe holds little, so this is short."""
        for handle in self._reading:
            for _ in range(64):
                with suppress(BlockingIOError):
                    if self._read(handle):
                        continue
                break

    def _read(self, handle: int) -> bool:
        """Whether there may be more."""
        data = os.read(handle, 1 << 16)
        kept = self._into[handle]
        if handle == self._sources.report:
            kept += data[: max(0, (1 << 16) - len(kept))]
        else:
            self.seen.total_bytes += len(data)
            if self._keeps_end:
                kept += data
                del kept[: max(0, len(kept) - self._limits.output_keep_bytes)]
            else:
                kept += data[: max(0, self._limits.output_keep_bytes - len(kept))]
        return bool(data)


def watchable(process: "subprocess.Popen[bytes]") -> int:
    """A descriptor that tells its end; without one it does not run."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def is_ready(handle: int, seconds: float) -> bool:
    """Whether a descriptor can be read, or its other end is closed, within a time; of any number, unlike `select`."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def kill(process: int) -> None:
    """End the process behind a pidfd, if it has not ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)


def pid_of(process: int) -> int | None:
    """Number of the process behind a pidfd, as seen here; None when it has ended."""
    with open(f"/proc/self/fdinfo/{process}") as info:
        for line in info:
            if line.startswith("Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None


def memory_of(pid: int, limit: int) -> int:
    """Bytes that the processes below ``pid`` hold together.

    Resident pages counts what children share with their parents once for each. When that sum is above ``limit``, the
    kernel's proportional figures decide, where they can be read.

    Raises:
        OSError: nothing can be read, e.g. for want of descriptors; then nobody knows what they hold.
    """
    below = descendants(pid)
    resident = sum(_resident(child) for child in below)
    if resident <= limit:
        return resident
    shares = [_proportional(child) for child in below]
    return resident if None in shares else sum(share for share in shares if share is not None)


def descendants(pid: int) -> list[int]:
    """All processes below one; one that has no parent any more is adopted by process 1 of its call, so none is lost."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        for child in _children(ahead.pop()):
            found.append(child)
            ahead.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(*_UNSEEN):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_UNSEEN), open(f"/proc/{pid}/task/{task}/children") as listed:
                found += [int(child) for child in listed.read().split()]
    return found


def _resident(pid: int) -> int:
    with suppress(*_UNSEEN), open(f"/proc/{pid}/statm") as statm:
        fields = statm.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    return 0


def _proportional(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            figures = {line.split(":")[0]: line.split()[1] for line in rollup if ":" in line}
        return (int(figures["Pss"]) - int(figures.get("Pss_File", "0"))) * 1024
    except _UNSEEN:
        return 0
    except (OSError, KeyError, ValueError, IndexError):
        return None
