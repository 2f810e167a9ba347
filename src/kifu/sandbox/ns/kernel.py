"""System calls the standard library does not offer, by ctypes. Runs inside the fork server: standard library only."""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH123

import ctypes
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

SIOCSIFFLAGS = 0x8914
SECCOMP_MODE_FILTER = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4
ALL_SECUREBITS_LOCKED = 0x2F
"""NOROOT, NO_SETUID_FIXUP, both locked, and KEEP_CAPS locked off."""
_CAPABILITY_VERSION_3 = 0x20080522

CALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91},
}
"""Numbers of the calls made here by number."""


def call_numbers() -> dict[str, int]:
    """The numbers for this machine; an unknown one is refused before anything runs."""
    machine = os.uname().machine
    if machine not in CALLS:
        raise OSError(38, f"no table of system calls for the architecture {machine}")
    return CALLS[machine]


def checked(result: int, what: str) -> int:
    """Raise what a C function reports as -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags``."""
    checked(libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, *, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """Mount, bind or change a mount."""
    result = libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    checked(result, f"mount {kind or 'bind'} on {target}")


def detach(target: str) -> None:
    """Take a mount, with all below it, out of sight; it goes when its last user does."""
    checked(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_into(folder: str) -> None:
    """Make ``folder``, a mount point, the root and take the root before it out of sight."""
    os.chdir(folder)
    checked(libc.syscall(call_numbers()["pivot_root"], b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount of the root before")
    os.chdir("/")


def clone(flags: int) -> tuple[int, int]:
    """Fork into new namespaces; process id and a descriptor of the process, (0, -1) in the child."""
    handle = ctypes.c_int(-1)
    pid = libc.syscall(call_numbers()["clone"], flags | CLONE_PIDFD | 17, 0, ctypes.byref(handle), 0, 0)
    return checked(pid, "clone"), handle.value


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """Change something about this process."""
    return int(libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def set_name(name: str) -> None:
    """Name of this process in lists of processes."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(text))


def set_hostname(name: str) -> None:
    """Host name of this UTS namespace."""
    checked(libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_capabilities() -> None:
    """No capability, none to be regained: bounding set, ambient set, secure bits, then the three sets."""
    capability = 0
    while prctl(PR_CAPBSET_DROP, capability) >= 0:
        capability += 1
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    checked(prctl(PR_SET_SECUREBITS, ALL_SECUREBITS_LOCKED), "securebits")
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    checked(libc.syscall(call_numbers()["capset"], header, b"\0" * 24), "capset")


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def install_filter(code: bytes) -> None:
    """Install a seccomp filter for this process and all its children, for good."""
    program = _Program(len(code) // 8, code)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def wipe_arguments(name: str) -> None:
    """Overwrite this process's command line, which every process that sees it can read."""
    with open("/proc/self/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    shown = name.encode()[: end - start - 1]
    ctypes.memmove(start, shown, len(shown))
    set_name(name)


def write_file(path: str, text: str) -> None:
    """Write a small file in one call, as files under /proc want it."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def map_ids(*, inside: int, outside: tuple[int, int]) -> None:
    """One user and one group exist in this user namespace; ``outside`` are their numbers in the parent's."""
    uid, gid = outside
    try:
        write_file("/proc/self/setgroups", "deny")
    except OSError as error:
        if error.errno != 1:
            raise  # 1: the parent namespace has denied it already, which is inherited
    write_file("/proc/self/uid_map", f"{inside} {uid} 1")
    write_file("/proc/self/gid_map", f"{inside} {gid} 1")
