"""What a box sees of a machine: the template of its root, and the root of one call. Standard library only."""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH102, PTH103, PTH110, PTH211

import fcntl
import os
import resource
import socket
import struct

from kifu.sandbox.ns.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    SIOCSIFFLAGS,
    mount,
    pivot_into,
)
from kifu.sandbox.ns.launcher import DEVICES

WORK = "/box"
BOX_USER = 1000
_ETC = {
    "passwd": f"agent:x:{BOX_USER}:{BOX_USER}::/tmp:/bin/sh\n",
    "group": f"agent:x:{BOX_USER}:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
STATIC_PROC = {
    "cpuinfo": "processor\t: 0\nmodel name\t: cpu\ncpu MHz\t\t: 1000.000\n\n",
    "meminfo": "MemTotal:        1048576 kB\nMemFree:         1048576 kB\nMemAvailable:    1048576 kB\n"
    "SwapTotal:             0 kB\nSwapFree:              0 kB\n",
    "loadavg": "0.00 0.00 0.00 1/1 1\n",
    "uptime": "1.00 1.00\n",
    "version": "Linux version 6.0.0\n",
    "cmdline": "\n",
    "stat": "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\nctxt 0\nbtime 0\nprocesses 0\n",
    "diskstats": "",
    "sys/kernel/random/boot_id": "00000000-0000-0000-0000-000000000000\n",
}
"""Files that tell one machine from another, or one moment from another, are the same in every box."""


def build_template(config: dict) -> None:  # type: ignore[type-arg]
    """Prepare once what every call shares: image, /etc, /dev, mount points."""
    mount("root", "/t", kind="tmpfs", flags=MS_NOSUID | MS_NODEV, options="size=256k,nr_inodes=512,mode=755")
    for folder in ("dev", "dev/shm", "etc", "proc", "tmp", WORK[1:]):
        os.mkdir(f"/t/{folder}")
    for place, target in config["image"]:
        os.makedirs(f"/t{target}", exist_ok=True)
        # An overlay, so that the list of mounts names no folder of the host.
        options = f"lowerdir=/i/{place}:/empty,userxattr"
        mount("image", f"/t{target}", kind="overlay", flags=MS_RDONLY | MS_NOSUID | MS_NODEV, options=options)
    for name, target in config["links"]:
        os.symlink(target, f"/t/{name}")
    for name, text in _ETC.items():
        _write(f"/t/etc/{name}", text)
    if os.path.exists("/etc/ld.so.cache"):
        _write("/t/etc/ld.so.cache", "")
        mount("/etc/ld.so.cache", "/t/etc/ld.so.cache", flags=MS_BIND)
    for name in DEVICES:
        _write(f"/t/dev/{name}", "")
        mount(f"/dev/{name}", f"/t/dev/{name}", flags=MS_BIND)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/t/dev/{name}")
    os.symlink("/proc/self/fd", "/t/dev/fd")
    for name, text in STATIC_PROC.items():
        _write(f"/p/{name.replace('/', '_')}", text)
    if "read_only_root" not in config["without"]:
        mount(None, "/t", flags=MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def enter_root(box: str, request: dict, off: set[str]) -> None:  # type: ignore[type-arg]
    """Give the calling process, alone in its mount namespace, the root of one call."""
    is_private = "private_root" not in off
    work = WORK if is_private else "/mnt"
    mount("/t" if is_private else "/host", "/r", flags=MS_BIND | MS_REC)
    mount(box, f"/r{work}", flags=MS_BIND)
    limits = request["limits"]
    quota = "" if "tmp_quota" in off else f"size={limits['tmp_bytes']},nr_inodes=4096,"
    flags = MS_NOSUID | MS_NODEV
    mount("tmp", "/r/tmp", kind="tmpfs", flags=flags, options=f"{quota}mode=1777")
    mount("shm", "/r/dev/shm", kind="tmpfs", flags=flags, options=f"{quota}mode=1777")
    if "pid_ns" in off:
        mount("/proc", "/r/proc", flags=MS_BIND | MS_REC)
    else:
        # What may not be traced is not listed: process 1 belongs to this user too, but cannot be looked into.
        mount("proc", "/r/proc", kind="proc", flags=flags | MS_NOEXEC, options="hidepid=ptraceable")
    if "static_proc" not in off:
        for name in STATIC_PROC:
            mount(f"/p/{name.replace('/', '_')}", f"/r/proc/{name}", flags=MS_BIND)
    pivot_into("/r")
    os.chdir(work)


def raise_loopback() -> None:
    """Bring up the loopback device of this network namespace; there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", 1))


def set_limits(limits: dict, off: set[str]) -> None:  # type: ignore[type-arg]
    """Limits of single processes, which every process started here inherits."""
    wanted = {
        "limit_memory": (resource.RLIMIT_AS, limits["mem_process_bytes"]),
        "limit_processes": (resource.RLIMIT_NPROC, limits["pids"]),
        "limit_cpu": (resource.RLIMIT_CPU, limits["cpu_s"]),
        "limit_file": (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        "limit_open_files": (resource.RLIMIT_NOFILE, limits["open_files"]),
    }
    for name, (number, value) in wanted.items():
        if name not in off and value is not None:
            resource.setrlimit(number, (value, value))
    for number, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 256),
    ):
        resource.setrlimit(number, (value, value))


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
    os.write(handle, text.encode())
    os.close(handle)
