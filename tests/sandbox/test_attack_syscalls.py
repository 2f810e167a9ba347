"""Attacks by system calls: each is refused by the filter or the lack of rights, and does something without them."""

import os
from collections.abc import Mapping
from typing import Protocol

import pytest


class Bouts(Protocol):
    def fight(self, table: Mapping[str, tuple[str, str]], name: str, *, ends: str = "LOST", **more: object) -> None: ...


MACHINE = os.uname().machine

CALLS = {
    # name: number on x86_64, on aarch64, arguments; the call is refused when its error is EPERM
    "trace a process": (101, 117, "0, 0, 0, 0"),
    "read memory of a process": (310, 270, "os.getpid(), 0, 0, 0, 0, 0"),
    "write memory of a process": (311, 271, "os.getpid(), 0, 0, 0, 0, 0"),
    "advise on memory of a process": (440, 440, "-1, 0, 0, 0, 0"),
    "release memory of a process": (448, 448, "-1, 0"),
    "take a descriptor of a process": (438, 438, "-1, 0, 0"),
    "compare kernel objects": (312, 272, "os.getpid(), os.getpid(), 0, 0, 0"),
    "open performance counters": (298, 241, "ctypes.c_char_p(bytes(128)), 0, -1, -1, 0"),
    "handle page faults": (323, 282, "1"),
    "set up io_uring": (425, 425, "1, 0"),
    "enter io_uring": (426, 426, "-1, 0, 0, 0, 0, 0"),
    "register with io_uring": (427, 427, "-1, 0, 0, 0"),
    "read keys": (250, 219, "0, -3, 1"),
    "add a key": (248, 217, "b'user', b'attack', b'x', 1, -2"),
    "request a key": (249, 218, "b'user', b'no such key', 0, 0"),
    "copy a tree of mounts": (428, 428, "-100, b'/tmp', 0"),
    "list mounts": (458, 458, "0, 0, 0, 0"),
    "describe mounts": (457, 457, "0, 0, 0, 0"),
    "leave its table of files": (272, 97, "0x400"),
    "make a user namespace": (272, 97, "0x10000000"),
    "name a file by handle": (303, 264, "-100, b'/tmp', 0, 0, 0"),
    "change its personality": (135, 92, "0x0040000"),
    "ask for quotas": (443, 443, "-1, 0, 0, 0"),
    "watch the file system": (300, 262, "0x200, 0"),
    "read the clock's adjustment": (159, 171, "ctypes.c_char_p(bytes(208))"),
    "adjust a clock": (305, 266, "0, ctypes.c_char_p(bytes(208))"),
    "bind memory to a node": (237, 235, "0, 0, 0, 0, 0, 0"),
    "move memory between nodes": (256, 238, "0, 0, 0, 0"),
    "move pages": (279, 239, "0, 0, 0, 0, 0, 0"),
    "set a memory policy": (238, 237, "0, 0, 0"),
    "set a home node": (450, 450, "0, 0, 0, 0"),
    "make secret memory": (447, 447, "0"),
    "make a ruleset of its own": (444, 444, "0, 0, 1"),
}
X86_CALLS = {
    "change the local descriptor table": (154, 0, "0, 0, 0"),
    "ask for port access": (172, 0, "0"),
    "read file system types": (139, 0, "3, 0, 0"),
    "read file system statistics": (136, 0, "0, 0"),
}


CHOSEN = {**CALLS, **(X86_CALLS if MACHINE == "x86_64" else {})}
BY_NUMBER = {
    name: ("seccomp", f"return errno_of({x86 if MACHINE == 'x86_64' else arm}, {arguments}) != errno.EPERM")
    for name, (x86, arm, arguments) in CHOSEN.items()
}


@pytest.mark.parametrize("name", BY_NUMBER)
def test_attack_by_a_system_call_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(BY_NUMBER, name)


CLONE = {"x86_64": 56, "aarch64": 220}[MACHINE]
SPECIAL = {
    "clone into a user namespace": (
        "seccomp",
        f"""
        pid = libc.syscall({CLONE}, 0x10000000 | 17, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        return pid > 0
        """,
    ),
    "clone by the call a filter cannot read": ("seccomp", "return errno_of(435, 0, 0) != errno.ENOSYS"),
    "type into the terminal": (
        "seccomp",
        "return errno_of({'x86_64': 16, 'aarch64': 29}[os.uname().machine], 1, 0x5412, b'x') != 1",
    ),
    "paste into the console": (
        "seccomp",
        "return errno_of({'x86_64': 16, 'aarch64': 29}[os.uname().machine], 1, 0x541C, b'x') != 1",
    ),
    "change the host name": ("seccomp capabilities", "return libc.sethostname(b'other', 5) == 0"),
    "mount a file system": ("seccomp capabilities", "return libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0"),
    "take a mount away": ("seccomp capabilities", "return libc.umount2(b'/proc/cpuinfo', 2) == 0"),
    "change its root": ("seccomp capabilities", "return libc.chroot(b'/tmp') == 0"),
    "enter a namespace": (
        "seccomp capabilities",
        "return libc.setns(os.open('/proc/self/ns/uts', os.O_RDONLY), 0) == 0",
    ),
    "open a file system by the new calls": ("seccomp capabilities", "return errno_of(430, b'tmpfs', 0) == 0"),
    "hold a capability": ("capabilities", "return int(status('CapEff'), 16)"),
    "hold a permitted capability": ("capabilities", "return int(status('CapPrm'), 16)"),
    "regain a capability by a program": ("capabilities", "return int(status('CapBnd'), 16)"),
    "bind a privileged port": (
        "seccomp capabilities",
        "socket.socket(socket.AF_INET).bind(('127.0.0.1', 80))\nreturn 'bound'",
    ),
    "gain rights by a set-uid program": ("no_new_privs seccomp", "return status('NoNewPrivs').strip() == '0'"),
    "run without a filter": ("seccomp", "return status('Seccomp').strip() == '0'"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_attack_by_rights_or_flags_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(SPECIAL, name)


RUN_CODE = """
page = mmap.mmap(-1, 4096, prot=7)
page.write({code})
return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() != 0
"""
ENTRIES = {
    # mov eax, 20 (getpid); int 0x80; ret
    "by the 32-bit entry": ("seccomp", RUN_CODE.format(code=b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")),
    # mov eax, 0x40000027 (x32 getpid); syscall; ret
    "by the x32 numbers": ("seccomp", RUN_CODE.format(code=b"\xb8\x27\x00\x00\x40\x0f\x05\xc3")),
}


@pytest.mark.skipif(MACHINE != "x86_64", reason="the 32-bit entry and x32 are x86's")
@pytest.mark.parametrize("name", ENTRIES)
def test_attack_by_another_entry_to_the_kernel_is_killed(bouts: Bouts, name: str) -> None:
    bouts.fight(ENTRIES, name, ends="KILLED")
