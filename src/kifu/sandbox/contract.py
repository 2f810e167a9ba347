"""What a sandbox is asked for, what it promises and what a call gives back. No back-end is named here."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from kifu.errors import ArgumentError, KifuError, SandboxFailure
from kifu.sandbox.tree import Tree

WORK = "/box"
"""Where a box's own files stand, in the box."""


class Guarantee(StrEnum):
    """Something a back-end has proved with attacks, on this machine, since it was started."""

    NET_NONE = "net_none"
    """No socket of a network family, no device but an own loopback, no service of the host."""
    FS_PRIVATE = "fs_private"
    """No file of the host can be read but those of the image and the mounts."""
    FS_READ_ONLY = "fs_read_only"
    """Nothing outside the box, /tmp and /dev/shm can be written."""
    PID_PRIVATE = "pid_private"
    """No process outside the call can be seen, signalled or traced."""
    IPC_PRIVATE = "ipc_private"
    """No shared memory, queue or abstract socket reaches outside the call."""
    NO_SURVIVORS = "no_survivors"
    """When a call has returned, none of its processes runs."""
    NO_SECRETS = "no_secrets"
    """No environment, descriptor, argument or path of the host is visible."""
    NO_PRIVILEGES = "no_privileges"
    """No capability, no new user namespace, no gain by set-uid programs."""
    SYSCALLS = "syscalls"
    """Tracing, mounts, keys, io_uring, BPF and the like are refused by a filter of system calls."""
    DISK_HARD = "disk_hard"
    """Bytes and number of files in the box, /tmp and /dev/shm are capped by the kernel."""
    PIDS_HARD = "pids_hard"
    """The number of processes is capped by the kernel."""
    MEM_PROCESS = "mem_process"
    """The address space of a single process is capped by the kernel."""
    MEM_WATCHED = "mem_watched"
    """The memory of all processes together is measured every 20 ms; a call above its limit is killed."""
    MEM_HARD = "mem_hard"
    """The memory of all processes together is capped by the kernel."""
    CPU_HARD = "cpu_hard"
    """CPU seconds of a process are capped by the kernel."""
    WALL = "wall"
    """A call above its time is killed with everything it started, whatever signals it ignores."""
    OUTPUT = "output"
    """Output is read without end, kept to a limit, and a call far above it is killed."""
    KERNEL_SEPARATE = "kernel_separate"
    """Another kernel than the host's. No back-end here has it; name it to be refused rather than trusted."""


DEFAULT_REQUIRED = frozenset(Guarantee) - {Guarantee.MEM_HARD, Guarantee.KERNEL_SEPARATE}
"""What a policy requires when it does not say."""


class Reason(StrEnum):
    """How a call ended. Only `EXIT` has a usable code."""

    EXIT = "exit"
    SIGNAL = "signal"
    """Killed by a signal, its own or the kernel's, the limit of CPU seconds for one."""
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    MEM_LIMIT = "mem_limit"
    DENIED = "denied"
    """The call did not fit the policy and never began."""
    SETUP_FAILED = "setup_failed"
    """The sandbox could not begin it; nothing is known about what it would have done."""


class Network(StrEnum):
    """What a call may reach."""

    NONE = "none"
    LOOPBACK = "loopback"
    """A loopback device of its own call, for a server and its client started in one call."""


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ArgumentError(f"limits: {name} is {value}, expected at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one call, except `disk_bytes` and `inodes`, which hold for a box and all it branched from."""

    wall_s: float = 10.0
    cpu_s: int = 10
    """Per process."""
    mem_total_bytes: int = 1 << 30
    """All processes of a call together."""
    mem_process_bytes: int | None = 1 << 30
    """Address space of one process; None for run-times that reserve more than they use (Go, Node, Java)."""
    pids: int = 64
    disk_bytes: int = 64 << 20
    inodes: int = 20_000
    tmp_bytes: int = 32 << 20
    """Each of /tmp and /dev/shm."""
    file_bytes: int = 32 << 20
    """One file."""
    open_files: int = 256
    output_keep_bytes: int = 65_536
    """Kept of each of stdout and stderr."""
    output_kill_bytes: int = 1 << 20
    """Of both together; a call that writes more is killed."""

    def __post_init__(self) -> None:
        for name, least in (("cpu_s", 1), ("pids", 3), ("inodes", 16), ("tmp_bytes", 4096), ("open_files", 16)):
            _at_least(name, getattr(self, name), least)
        for name in ("disk_bytes", "mem_total_bytes", "file_bytes", "output_keep_bytes", "output_kill_bytes"):
            _at_least(name, getattr(self, name), 1)
        if not 0 < self.wall_s < float("inf"):
            raise ArgumentError(f"limits: wall_s is {self.wall_s}, expected a finite number of seconds above 0")
        if self.mem_process_bytes is not None:
            _at_least("mem_process_bytes", self.mem_process_bytes, 64 << 20)


_OF_EVERY_BOX = ("box", "proc", "dev", "tmp", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""At its root, beside /usr, below which a mount can still stand on a folder that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the host shown read-only in every box: a tool chain, a data set. Never one with secrets in it."""

    source: str
    target: str

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            is_normal = name.startswith("/") and posixpath.normpath(name) == name and name not in ("/", "//")
            if not is_normal or name.startswith("//") or "\0" in name or not is_encodable(name):
                raise ArgumentError(f"mount: {name!r} is no absolute, normal path below /")
        if self.target == "/usr" or self.target.split("/")[1] in _OF_EVERY_BOX:
            raise ArgumentError(f"mount: {self.target} would cover what every box has; choose e.g. /opt/name")


def check_mounts(mounts: Sequence[Mount]) -> None:
    """Refuse mounts of which one would hide another.

    Raises:
        ArgumentError: the message names both.
    """
    for at, mount in enumerate(mounts):
        for earlier in mounts[:at]:
            if f"{earlier.target}/".startswith(f"{mount.target}/"):
                raise ArgumentError(
                    f"mounts: {mount.source} at {mount.target} would hide {earlier.source} at {earlier.target}; choose "
                    "targets apart, or put the outer one first"
                )


def start_problem(argv: Sequence[str], env: Sequence[tuple[str, str]]) -> str:
    """Why no program can be given these arguments and variables; empty where one can."""
    for name, _ in env:
        if not name or "=" in name:
            return f"a variable is named {name!r}, expected a name without `=`"
    for text in (*argv, *(text for pair in env for text in pair)):
        if "\0" in text:
            return f"an argument or variable holds a null character, which no program can be given: {text!r:.80}"
        if not is_encodable(text):
            return f"an argument or variable holds half a character, which no program can be given: {text!r:.80}"
    return ""


def is_encodable(text: str) -> bool:
    """It holds no half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


LINK = "KIFU_LINK"
"""Variable of a program with a link: the number of the descriptor it writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way between a program in a box and its starter. Descriptors are the starter's, who closes them after the call.

    Pipes, not sockets: a socket could carry other descriptors of the box out, and closing those can block. Such a
    program is a whole agent, whose last words matter: of its output the end is kept, not the beginning.
    """

    read: int
    """End of a pipe that becomes the program's standard input."""
    write: int
    """End of a pipe that the program gets under the number in the variable `LINK`."""
    stop: int
    """End of a pipe: when its other end is closed, the call is killed, with the reason `Reason.TIMEOUT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program to start in a box."""

    argv: tuple[str, ...]
    """The program by its absolute path in the box, and its arguments."""
    env: tuple[tuple[str, str], ...] = ()
    """Added to PATH, HOME and LANG; nothing is taken from the host."""
    cwd: str = ""
    """Folder below the box's; empty for the box itself."""
    stdin: bytes = b""
    link: Link | None = None
    """Instead of an input: what the program and its starter say to each other."""
    limits: Limits = Limits()
    network: Network = Network.NONE
    is_warm: bool = False
    """The first argument is Python's, and the fork server's own interpreter runs the rest without starting a new one.
    For trusted runners alone: code that runs so can see the fork server's frames."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0].startswith("/"):
            raise ArgumentError(f"command: the program is {self.argv[:1]}, expected its absolute path in the box")
        if problem := start_problem(self.argv, self.env):
            raise ArgumentError(f"command: {problem}")
        if self.link is not None and (self.stdin or self.is_warm):
            raise ArgumentError("command: a link takes the place of stdin, of a program that is not warm")
        if self.is_warm and len(self.argv) < 2:
            raise ArgumentError("command: a warm one needs a script or -m and a module after the interpreter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a back-end saw of a command."""

    reason: Reason
    code: int | None = None
    """Exit code, where the reason is `EXIT`."""
    signal: int | None = None
    """Number of the signal, where the reason is `SIGNAL`."""
    out: bytes = b""
    err: bytes = b""
    total_bytes: int = 0
    """Read from both, kept or not."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    """The largest process's, or where all were measured together, theirs."""
    message: str = ""
    """Why it was not begun, for people; never shown to the policy, since it may name the host."""

    def __post_init__(self) -> None:
        if (self.code is not None) != (self.reason is Reason.EXIT):
            raise ArgumentError(f"result of a command: reason {self.reason} with code {self.code}")
        if (self.signal is not None) != (self.reason is Reason.SIGNAL):
            raise ArgumentError(f"result of a command: reason {self.reason} with signal {self.signal}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which files to take out of a box, and how many at most."""

    patterns: tuple[str, ...]
    """Paths below the box; ``*`` stays within a name, ``**`` crosses folders."""
    max_files: int = 200
    max_bytes: int = 1 << 20
    max_visited: int = 100_000
    """Names looked at."""
    with_data: bool = True
    """Otherwise a file's data is its size in digits."""

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ArgumentError("export: no pattern; name what may leave the box")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What came out of a box: regular files with plain names, and what was left behind."""

    tree: Tree
    refused: tuple[tuple[str, str], ...] = ()
    """Path and why; the first hundred."""
    refused_count: int = 0
    is_complete: bool = True
    """No cap was reached."""


class Box(Protocol):
    """One back-end's box. One call at a time."""

    def run(self, command: Command) -> Ran:
        """Run a command to its end."""
        ...

    def branch(self) -> Self:
        """A new box that begins as this one stands; neither sees the other's later changes."""
        ...

    def write(self, tree: Tree) -> None:
        """Put files in, replacing those of the same name.

        Raises:
            Denied: a path leads out of the box.
        """
        ...

    def read(self, wanted: Wanted) -> Export:
        """Take files out."""
        ...

    def close(self) -> None:
        """Give it up; closing twice is fine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a back-end could show."""

    backend: str
    held: frozenset[Guarantee] = frozenset()
    failed: tuple[tuple[Guarantee, str], ...] = ()
    """What succeeded that should not have, by guarantee."""
    errno: int | None = None
    """Of the step that failed, where the back-end could not start at all."""
    problem: str = ""
    remedy: str = ""

    def missing(self, required: frozenset[Guarantee]) -> tuple[Guarantee, ...]:
        """Required and not held."""
        return tuple(sorted(required - self.held))


class Backend(Protocol):
    """A way to run boxes on this machine."""

    @property
    def name(self) -> str:
        """For records."""
        ...

    def prove(self) -> Proof:
        """Attack a box of its own and say which guarantees held. Cheap when asked again."""
        ...

    def open(self, policy: "BoxPolicy") -> Box:
        """Make a box."""
        ...

    def close(self) -> None:
        """End everything it started."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPolicy:
    """What a back-end needs to make a box."""

    base: Tree
    limits: Limits
    mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        check_mounts(self.mounts)


class Denied(KifuError):
    """A request outside the policy. The caller's result says so; it is no failure of the sandbox."""


class SandboxUnavailable(SandboxFailure):
    """No back-end on the list proved what is required.

    Args:
        proofs: what each of them could show, in the order they were tried.
        required: what had to hold.
    """

    def __init__(self, proofs: Sequence[Proof], required: frozenset[Guarantee]) -> None:
        self.proofs = tuple(proofs)
        self.required = required
        lines = " ".join(_shortfall(proof, required) for proof in proofs) or "The list of back-ends is empty."
        super().__init__(f"no sandbox proves the {len(required)} guarantees that are required. {lines}")


def _shortfall(proof: Proof, required: frozenset[Guarantee]) -> str:
    failed = "; ".join(f"{name}: {what}" for name, what in proof.failed if name in required)
    number = f" (errno {proof.errno})" if proof.errno is not None else ""
    missing = ", ".join(proof.missing(required))
    remedy = proof.remedy or "Choose another back-end, or require less and say so in the experiment."
    return f"`{proof.backend}` lacks {missing}: {proof.problem or failed or 'it does not offer them'}{number}. {remedy}"
