"""Attacks a box makes on its own walls, to prove them. Standard library only; runs inside a box, prints JSON.

Each probe returns what it could do that it should not; an empty text means that the wall held. ``facts`` come from the
prover: folders and a socket of the host, the number of its process, the limits.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH102, PTH106, PTH108, PTH110, PTH115, PTH123, PTH208

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time

_FAMILIES = {"AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17, "AF_ALG": 38, "AF_VSOCK": 40}
_HOST_FOLDERS = ("/root", "/home", "/var", "/sys", "/run", "/boot", "/srv", "/etc/shadow", "/etc/ssh", "/host")
_CALLS = {
    # name: number and arguments on x86_64; the second number is aarch64's
    "ptrace": ((101, 117), (16, 0, 0, 0)),
    "io_uring_setup": ((425, 425), (1, 0)),
    "keyctl": ((250, 219), (0, -3, 1)),
    "bpf": ((321, 280), (0, 0, 0)),
    "mount": ((165, 40), (0, b"/tmp", 0, 0, 0)),
    "unshare": ((272, 97), (0x10000000,)),
    "perf_event_open": ((298, 241), (0, 0, -1, -1, 0)),
    "userfaultfd": ((323, 282), (0,)),
}


def net_none(facts: dict) -> str:  # type: ignore[type-arg]
    """Open a socket of a network family, find a device."""
    made = []
    for name, family in _FAMILIES.items():
        try:
            socket.socket(family, socket.SOCK_DGRAM if family == 2 else socket.SOCK_RAW if family == 17 else 1).close()
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EPERM):
                continue
        made.append(name)
    with open("/proc/self/net/dev") as listed:
        devices = [line.split(":")[0].strip() for line in listed if ":" in line]
    return " ".join([*(f"{name} was not refused" for name in made), *(d for d in devices if d != "lo")])


def fs_private(facts: dict) -> str:  # type: ignore[type-arg]
    """Look for folders of the prover, and for folders every host has."""
    seen = [path for path in (*facts["paths"], *_HOST_FOLDERS) if os.path.exists(path)]
    return f"can see {', '.join(seen)}" if seen else ""


def fs_read_only(facts: dict) -> str:  # type: ignore[type-arg]
    """Write outside the box."""
    wrote = []
    for path in ("/probe", "/usr/probe", "/etc/probe", "/dev/probe", "/etc/passwd", "/proc/sys/kernel/core_pattern"):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            wrote.append(path)
        except OSError:
            continue
    return f"could write {', '.join(wrote)}" if wrote else ""


def pid_private(facts: dict) -> str:  # type: ignore[type-arg]
    """See, read or signal a process outside the call."""
    found = []
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if len(pids) > 3:
        found.append(f"sees {len(pids)} processes")
    for name in ("environ", "mem"):
        try:
            os.close(os.open(f"/proc/1/{name}", os.O_RDONLY))
            found.append(f"reads /proc/1/{name}")
        except OSError:
            continue
    try:
        os.kill(facts["pid"], 0)
        found.append("can signal the supervisor")
    except OSError as error:
        if error.errno == errno.EPERM and facts["pid"] not in pids:
            found.append("knows the supervisor's number")
    return ", ".join(found)


def ipc_private(facts: dict) -> str:  # type: ignore[type-arg]
    """Connect to an abstract socket of the host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(b"\0" + facts["socket"].encode())
        except OSError:
            return ""
    return "connected to an abstract socket of the host"


def no_secrets(facts: dict) -> str:  # type: ignore[type-arg]
    """Find the host's environment, descriptors or paths."""
    found = [name for name in os.environ if name not in ("PATH", "HOME", "LANG", "LC_CTYPE", "PWD")]
    for handle in os.listdir("/proc/self/fd"):
        target = _link(f"/proc/self/fd/{handle}")
        if int(handle) > 2 and target and not target.endswith("/fd"):
            found.append(f"descriptor {handle} -> {target}")
    for path in ("/proc/1/cmdline", "/proc/self/mountinfo"):
        if not os.path.exists(path):
            continue
        with open(path, "rb") as source:
            text = source.read()
        found += [f"{path} names {secret}" for secret in facts["paths"] if secret.encode() in text]
    return ", ".join(found)


def no_privileges(facts: dict) -> str:  # type: ignore[type-arg]
    """Hold a capability, become privileged by a new user namespace or a set-uid program."""
    status = _status()
    found = [f"{name} {status[name]}" for name in ("CapEff", "CapPrm", "CapBnd") if int(status[name], 16)]
    if status["NoNewPrivs"] != "1":
        found.append("set-uid programs gain rights")
    if os.getuid() == 0:
        found.append("is user 0")
    return ", ".join(found)


def syscalls(facts: dict) -> str:  # type: ignore[type-arg]
    """Make the calls the filter refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    column = ("x86_64", "aarch64").index(os.uname().machine)
    found = []
    for name, (numbers, arguments) in _CALLS.items():
        if libc.syscall(numbers[column], *arguments) >= 0 or ctypes.get_errno() != errno.EPERM:
            found.append(f"{name} was not refused")
    if _status()["Seccomp"] != "2":
        found.append("no filter")
    return ", ".join(found)


def disk_hard(facts: dict) -> str:  # type: ignore[type-arg]
    """Write more bytes and more files than allowed."""
    found = []
    for folder in (".", "/tmp", "/dev/shm"):
        size = _fill(f"{folder}/big", facts["disk_bytes"] * 2)
        if size > facts["disk_bytes"] + (1 << 16):
            found.append(f"wrote {size} bytes to {folder}")
    made = _many("inodes", facts["inodes"] * 2)
    if made > facts["inodes"]:
        found.append(f"made {made} files")
    return ", ".join(found)


def pids_hard(facts: dict) -> str:  # type: ignore[type-arg]
    """Fork more often than allowed."""
    pids = []
    try:
        for _ in range(facts["pids"] * 2):
            pid = os.fork()
            if pid == 0:
                time.sleep(20)
                os._exit(0)
            pids.append(pid)
    except OSError:
        pass
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return f"started {len(pids)} processes" if len(pids) >= facts["pids"] else ""


def mem_process(facts: dict) -> str:  # type: ignore[type-arg]
    """Map more memory than one process may."""
    try:
        mmap.mmap(-1, facts["mem_process_bytes"] + (1 << 20)).close()
    except (OSError, MemoryError, ValueError):
        return ""
    return f"mapped {facts['mem_process_bytes']} bytes and more"


def cpu_hard(facts: dict) -> str:  # type: ignore[type-arg]
    """Raise the limit of CPU seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != facts["cpu_s"]:
        return f"the limit is {hard} s"
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (hard + 1, hard + 1))
    except (OSError, ValueError):
        return ""
    return "raised the limit"


def survive(facts: dict) -> str:  # type: ignore[type-arg]
    """Leave a process behind that has left its session and keeps writing."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        with open("survivor", "ab", buffering=0) as out:
            for _ in range(2000):
                out.write(b".")
                time.sleep(0.002)
        os._exit(0)
    end = time.monotonic() + 30
    while not os.path.exists("survivor") and time.monotonic() < end:
        time.sleep(0.002)
    return ""


def hang(facts: dict) -> str:  # type: ignore[type-arg]
    """Ignore every signal and stay."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(30)
    return "outlived its time"


def flood(facts: dict) -> str:  # type: ignore[type-arg]
    """Write far more than is allowed."""
    for _ in range(128):
        os.write(1, b"x" * 65536)
    return "wrote all of it"


def hoard(facts: dict) -> str:  # type: ignore[type-arg]
    """Hold more memory in several processes than all may together."""
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(facts["mem_total_bytes"] // 2)
            held[::4096] = b"x" * len(held[::4096])
            time.sleep(8)
            os._exit(0)
    time.sleep(8)
    return "held more than its share"


def main(arguments: list[str]) -> None:
    """Run probes by name, print what each could do."""
    facts = json.loads(arguments[0])
    names = arguments[1:]
    results = {}
    for name in names:
        try:
            results[name] = globals()[name](facts)
        except Exception as error:
            results[name] = f"the probe failed: {type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(results))
    sys.stdout.flush()


def _status() -> dict[str, str]:
    with open("/proc/self/status") as status:
        return dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _fill(path: str, goal: int) -> int:
    size = 0
    out = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while size < goal:
            size += os.write(out, b"x" * 65536)
    except OSError:
        pass
    os.close(out)
    os.unlink(path)
    return size


def _many(folder: str, goal: int) -> int:
    os.mkdir(folder)
    made = 0
    try:
        while made < goal:
            os.close(os.open(f"{folder}/{made}", os.O_WRONLY | os.O_CREAT, 0o600))
            made += 1
    except OSError:
        pass
    for number in range(made):
        os.unlink(f"{folder}/{number}")
    os.rmdir(folder)
    return made


if __name__ == "__main__":
    main(sys.argv[1:])
