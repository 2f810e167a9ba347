"""What a sandboxed call, a reset and a branch cost, beside what else can be had on this machine, in one run.

    python benchmarks/sandbox.py --rounds 100 --bwrap /usr/bin/bwrap --out docs/results/sandbox.md

Every figure stands beside its peers of the same round: the rounds take turns, so that load hits all alike. CPU figures
of `ns` are the kernel's for the whole call, those of programs are of the process and its children.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kifu.sandbox import BwrapBackend, Command, Limits, NsBackend, Policy, Sandbox, Tree, open_sandbox, shell
from kifu.sandbox.contract import Box, BoxPolicy
from kifu.sandbox.watching import descendants

LIMITS = Limits(wall_s=60.0)
TRUE = Command(argv=("/bin/sh", "-c", "true"), limits=LIMITS)
PYTHON = Command(argv=("/usr/bin/python3", "-I", "-S", "-c", "pass"), limits=LIMITS)


@dataclass
class Row:
    """One thing measured."""

    name: str
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def line(self) -> str:
        """For a table."""
        cpu = f"{statistics.fmean(self.cpu_ms):.2f}" if self.cpu_ms else ""
        return f"| {self.name} | {min(self.wall_ms):.2f} | {statistics.median(self.wall_ms):.2f} | {cpu} |"


def repository(files: int, size: int) -> Tree:
    """So many files of so many bytes in folders of fifty."""
    return Tree.of({f"d{n // 50}/f{n}.txt": bytes(size) for n in range(files)})


@contextmanager
def folder_of(tree: Tree) -> Iterator[Path]:
    """The same files on disk, as a repository of git."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        for path, data in tree.files.items():
            target = source / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for command in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", "-C", str(source), *command], check=True)
        yield source


def timed(row: Row, work: Callable[[], object]) -> None:
    """One measurement."""
    start = time.perf_counter()
    work()
    row.wall_ms.append((time.perf_counter() - start) * 1e3)


def timed_call(row: Row, box: Box, command: Command) -> None:
    """One call of `ns`, which knows its CPU seconds, plus what the supervisor spent on it."""
    own = time.process_time()
    start = time.perf_counter()
    ran = box.run(command)
    row.wall_ms.append((time.perf_counter() - start) * 1e3)
    row.cpu_ms.append((ran.cpu_s + time.process_time() - own) * 1e3)


def timed_program(row: Row, work: Callable[[], object]) -> None:
    """One run of programs, with the CPU seconds of all children."""
    before, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    timed(row, work)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row.cpu_ms.append((spent + time.process_time() - own) * 1e3)


def timed_request(row: Row, backend: NsBackend, work: Callable[[], object]) -> None:
    """Something the fork server does itself: its CPU seconds and the supervisor's."""
    before, own = _server_s(backend), time.process_time()
    timed(row, work)
    row.cpu_ms.append((_server_s(backend) - before + time.process_time() - own) * 1e3)


def _server_s(backend: NsBackend) -> float:
    pids = [pid for watch in backend.pids() for pid in descendants(watch)]
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def calls(rounds: int, bwrap: str) -> list[Row]:
    """Isolated calls."""
    ns = NsBackend()
    box = ns.open(BoxPolicy(base=Tree(), limits=LIMITS))
    rows = [Row("`ns`, `sh -c true`"), Row("`ns`, `python3 -I -S -c pass`"), Row("no sandbox, `sh -c true`")]
    peers: dict[str, Callable[[], object]] = {}
    other = None
    if bwrap:
        other = BwrapBackend(program=bwrap)
        safe = other.open(BoxPolicy(base=Tree(), limits=LIMITS))
        peers["`bwrap` with the same filter and limits, `sh -c true`"] = lambda: safe.run(TRUE)
        naive = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "/bin/true"]
        peers["`bwrap --ro-bind / / --unshare-all` (unsafe), `true`"] = lambda: subprocess.run(naive, check=True)
    peers |= {
        name: lambda argv=argv: subprocess.run(argv, check=True, capture_output=True) for name, argv in programs()
    }  # type: ignore[misc]
    peer_rows = [Row(name) for name in peers]
    for _ in range(rounds):
        timed_call(rows[0], box, TRUE)
        timed_call(rows[1], box, PYTHON)
        timed_program(rows[2], lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True))
        for row, work in zip(peer_rows, peers.values(), strict=True):
            timed_program(row, work)
    ns.close()
    if other:
        other.close()
    return [*rows, *peer_rows]


def programs() -> list[tuple[str, list[str]]]:
    """What else isolates a command and is installed, asked for about what `ns` does where it can be."""
    firejail = [
        "--quiet",
        "--noprofile",
        "--net=none",
        "--private",
        "--private-dev",
        "--private-tmp",
        "--caps.drop=all",
    ]
    firejail += ["--nonewprivs", "--seccomp", "--rlimit-nproc=64", "--rlimit-nofile=256"]
    runsc = ["--rootless", "--platform=ptrace", "--network=none", "do"]
    podman = [
        "--root",
        "/run/podman",
        "--runroot",
        "/run/podman-state",
        "--cgroup-manager",
        "cgroupfs",
        "--runtime",
        "crun",
    ]
    podman += ["run", "--rm", "--network", "none", "--cgroups=disabled", "--read-only", "--cap-drop", "all"]
    podman += ["--security-opt", "no-new-privileges", "--ulimit", "nofile=256:256", "--ulimit", "nproc=64:64"]
    podman += ["--rootfs", "/run/peers"]
    known = {
        "`firejail`, private folders, no network, seccomp": ["firejail", *firejail],
        "`runsc --rootless --platform=ptrace do` (gVisor)": ["runsc", *runsc],
        "`podman run` over `crun`, cgroups off": ["podman", *podman],
    }
    return [
        (f"{name}, `sh -c true`", [*argv, "/bin/sh", "-c", "true"])
        for name, argv in known.items()
        if shutil.which(argv[0])
    ]


def resets(rounds: int) -> list[Row]:
    """Going back to a repository as it was, on sizes 1 : 10 : 50."""
    backend = NsBackend()
    rows = []
    sandboxes = {}
    for files, label in ((40, "1 MB, 40 files"), (400, "10 MB, 400 files"), (2000, "50 MB, 2,000 files")):
        policy = Policy(base=repository(files, 26_000), tools=(shell(),), limits=LIMITS)
        sandboxes[label] = open_sandbox(policy, backends=[backend])
        rows.append(Row(f"`ns` reset, {label}"))
    big = sandboxes["50 MB, 2,000 files"]
    branch = Row("`ns` snapshot + fork, 50 MB, 2,000 files")
    many = Row("`ns` 64 forks of a snapshot")
    edit = {"command": "echo x >> d0/f0.txt; rm d0/f1.txt; mkdir new; echo y > new/z"}
    for _ in range(rounds):
        for row, sandbox in zip(rows, sandboxes.values(), strict=True):
            sandbox.call("bash", edit)
            timed_request(row, backend, sandbox.reset)
        big.call("bash", edit)
        timed_request(branch, backend, lambda: _branch(big))
    for _ in range(max(2, rounds // 10)):
        big.call("bash", edit)
        timed_request(many, backend, lambda: _branch(big, 64))
    with folder_of(repository(2000, 26_000)) as source:
        peers = peers_of_reset(source, max(2, rounds // 30))
    backend.close()
    return [*rows, branch, many, *peers]


def _branch(sandbox: Sandbox, count: int = 1) -> None:
    snapshot = sandbox.snapshot()
    made = [sandbox.fork(snapshot) for _ in range(count)]
    for fork in made:
        fork.close()
    snapshot.close()


def peers_of_reset(source: Path, rounds: int) -> list[Row]:
    """The same repository by copying and by git."""
    rows = [Row("`cp -a` to disk"), Row("`cp -a` to a memory file system"), Row("`git worktree add`")]
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    for number in range(rounds):
        for row, target in ((rows[0], source.parent / f"c{number}"), (rows[1], memory / f"c{number}")):
            command = ["cp", "-a", str(source), str(target)]
            timed(row, lambda command=command: subprocess.run(command, check=True))  # type: ignore[misc]
            shutil.rmtree(target)
        tree = ["git", "-C", str(source), "worktree", "add", "-q", "--detach", str(source.parent / f"w{number}")]
        timed(rows[2], lambda tree=tree: subprocess.run(tree, check=True))  # type: ignore[misc]
    shutil.rmtree(memory)
    return rows


def episodes(seconds: float) -> str:
    """Episodes of a reset of 50 MB and three calls, one after the other, per second."""
    backend = NsBackend()
    policy = Policy(base=repository(2000, 26_000), tools=(shell(),), limits=LIMITS)
    count = 0
    cpu = 0.0
    with open_sandbox(policy, backends=[backend]) as sandbox:
        end = time.perf_counter() + seconds
        own = time.process_time()
        while time.perf_counter() < end:
            sandbox.reset()
            cpu += sum(sandbox.call("bash", {"command": "echo x > a"}).cpu_s for _ in range(3))
            count += 1
        cpu += time.process_time() - own
    backend.close()
    return f"{count / seconds:.1f} episodes/s (reset + 3 calls) by one supervisor, {cpu / count * 1e3:.1f} CPU-ms each"


def chaos(path: Path) -> list[str]:
    """What random kills left behind."""
    found = json.loads(path.read_text())
    left = sum(len(what) for what in found["left"].values())
    return [
        "## Random kills",
        "",
        "    python benchmarks/sandbox_chaos.py --episodes 10000 --seed 0",
        "",
        f"{found['episodes']:,} episodes, {found['killed_supervisors']} supervisors and {found['killed_parts']} other "
        f"parts killed: {found['right']:,} right, {found['failed']:,} ended as failures or by the signal, "
        f"{found['wrong']} wrong; processes, mounts, folders and descriptors left: {left}. {found['seconds']:.0f} s.",
        "",
    ]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--bwrap", default=shutil.which("bwrap") or "")
    parser.add_argument("--chaos", default="", help="what benchmarks/sandbox_chaos.py printed")
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    load = os.getloadavg()
    head = "| | min ms | p50 ms | CPU ms |\n| --- | --: | --: | --: |"
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    parts = [
        "# What the sandbox costs",
        "",
        f"    python benchmarks/sandbox.py --rounds {given.rounds} --bwrap BWRAP --chaos CHAOS --out THIS",
        "",
        f"Linux {os.uname().release}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, as {user}; load average "
        f"{load[0]:.1f} at the start. With other work on the machine the CPU column, a mean, is the solid one.",
        "",
        "## An isolated call",
        "",
        head,
        *(row.line() for row in calls(given.rounds, given.bwrap)),
        "",
        "## Going back, and branching",
        "",
        head,
        *(row.line() for row in resets(given.rounds)),
        "",
        "## Whole episodes",
        "",
        f"{episodes(10.0)}.",
        "",
        *(chaos(Path(given.chaos)) if given.chaos else []),
    ]
    text = "\n".join(parts)
    print(text)
    if given.out:
        Path(given.out).write_text(text)


if __name__ == "__main__":
    main()
