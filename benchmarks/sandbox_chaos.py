"""Kills sandboxes at random and looks for what is left: processes, mounts, folders, descriptors, wrong results.

Several supervisors run episodes. While one runs, a process of its box, its fork server or that one's watch may be
killed; a third of the supervisors are killed themselves. At the end nothing of theirs may be left.

    python benchmarks/sandbox_chaos.py --episodes 10000 --seed 0
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kifu.errors import SandboxFailure
from kifu.sandbox import Limits, NsBackend, Policy, Reason, Sandbox, Tree, open_sandbox, shell
from kifu.sandbox.ns.server import BOOT
from kifu.sandbox.watching import descendants

PER_SUPERVISOR = 50
KILLED_SUPERVISORS = 1 / 3
KILLED_CALLS = 0.1
POLICY = Policy(base=Tree.of({"number.txt": "7"}), tools=(shell(),), limits=Limits(wall_s=60.0), require=frozenset())


@dataclass
class Report:
    """What happened, and what is left."""

    episodes: int = 0
    right: int = 0
    failed: int = 0
    """Ended as a failure of the sandbox or by a signal, as they must when something was killed."""
    wrong: int = 0
    """Ended as if nothing had happened, with another result."""
    killed_supervisors: int = 0
    killed_parts: int = 0
    left: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def kill_something(backend: NsBackend, rng: random.Random) -> None:
    """Kill the watch, the fork server, or a process of a box."""
    time.sleep(rng.uniform(0.0, 0.02))
    for pid in backend.pids():
        chosen = rng.choice([pid, *descendants(pid)])
        with suppress(ProcessLookupError, PermissionError):
            os.kill(chosen, signal.SIGKILL)


def episode(sandbox: Sandbox, number: int) -> str:
    """One episode: ``right``, ``failed`` or ``wrong``. The shell itself fails when one of its programs is killed."""
    command = f"set -e; sleep 1 & n=$(cat number.txt); echo x > left; echo $((n * {number}))"
    result = sandbox.call("bash", {"command": command})
    if result.reason is not Reason.EXIT or result.code != 0:
        return "failed"
    return "right" if result.out == f"{number * 7}\n".encode() else "wrong"


def supervise(rng: random.Random, slot: int, out: int) -> None:
    """Run episodes, tell each one's outcome in a letter, leave nothing open."""
    backend = NsBackend(slot=slot)
    handles = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - its own descriptor counts alike both times
    for number in range(PER_SUPERVISOR):
        killer = None
        if rng.random() < KILLED_CALLS:
            killer = threading.Thread(target=kill_something, args=(backend, rng))
        try:
            with open_sandbox(POLICY, backends=[backend]) as sandbox:
                if killer:
                    killer.start()
                found = episode(sandbox, number)
        except SandboxFailure:
            found = "failed"
        if killer and killer.ident:
            killer.join()
            os.write(out, b"k")
        os.write(out, found[0].encode())
    backend.close()
    if len(os.listdir("/proc/self/fd")) > handles:  # noqa: PTH208
        os.write(out, b"h")


def left_processes(slots: range) -> list[str]:
    """Processes of fork servers and boxes: of the users of these slots, or begun and orphaned before they took one."""
    marks = {200_000 + slot for slot in slots} if os.geteuid() == 0 else set()
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                line = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                if folder.stat().st_uid in marks or (BOOT[:40].encode() in line and parent == 1):
                    found.append(f"{folder.name} {line[:60]!r}")
    return found


def run(episodes: int, seed: int, *, parallel: int = 2) -> Report:
    """All of it.

    Args:
        episodes: how many, at least; whole supervisors are run.
        seed: of what is killed when; when exactly it dies is the scheduler's.
        parallel: supervisors at a time.
    """
    rng = random.Random(seed)
    report = Report()
    first = 100 + os.getpid() % 800  # another run beside this one has other users
    slots = range(first, first + parallel)
    mounts = Path("/proc/self/mounts").read_text()
    folders = set(Path("/tmp").glob("kifu-*"))
    handles = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    start = time.monotonic()
    while report.episodes < episodes:
        children = [_start(rng, slot) for slot in slots]
        for child in children:
            _finish(child, rng, report)
    report.seconds = time.monotonic() - start
    end = time.monotonic() + 10
    while (left := left_processes(slots)) and time.monotonic() < end:
        time.sleep(0.05)
    found = {
        "processes": left,
        "mounts": [] if Path("/proc/self/mounts").read_text() == mounts else ["the list of mounts has changed"],
        "folders": [str(path) for path in set(Path("/tmp").glob("kifu-*")) - folders],
        "handles": [] if len(os.listdir("/proc/self/fd")) == handles else ["descriptors are open"],  # noqa: PTH208
    }
    for name, what in found.items():
        report.left[name] = [*report.left.get(name, []), *what]
    return report


def _start(rng: random.Random, slot: int) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    seed = rng.getrandbits(32)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            supervise(random.Random(seed), slot, write_end)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    return pid, read_end


def _finish(child: tuple[int, int], rng: random.Random, report: Report) -> None:
    """Read a supervisor's letters; kill it after some of them, maybe."""
    pid, source = child
    is_killed = rng.random() < KILLED_SUPERVISORS
    limit = rng.randrange(PER_SUPERVISOR) if is_killed else 1 << 30
    letters = b""
    while part := os.read(source, 1 if is_killed else 4096):
        letters += part
        if len(letters) > limit:
            os.kill(pid, signal.SIGKILL)
            limit = 1 << 30
            report.killed_supervisors += 1
    os.close(source)
    _, status = os.waitpid(pid, 0)
    if status not in (0, signal.SIGKILL):
        report.left.setdefault("errors", []).append(f"a supervisor ended with status {status}")
    report.right += letters.count(b"r")
    report.failed += letters.count(b"f")
    report.wrong += letters.count(b"w")
    report.killed_parts += letters.count(b"k")
    report.episodes = report.right + report.failed + report.wrong
    if b"h" in letters:
        report.left.setdefault("handles", []).append("a supervisor kept descriptors")


def main() -> int:
    """Print the report as JSON; 1 when something is left or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report = run(given.episodes, given.seed)
    print(json.dumps(asdict(report), indent=1))
    return int(report.wrong > 0 or any(report.left.values()))


if __name__ == "__main__":
    sys.exit(main())
