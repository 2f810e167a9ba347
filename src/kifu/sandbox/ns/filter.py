"""The system-call filter as classic BPF, put together by hand for two architectures. Standard library only.

Denied calls fail with EPERM. ``clone3`` fails with ENOSYS, so that the C library falls back to ``clone``, whose flags a
filter can read. A socket of a family that is not allowed fails with EAFNOSUPPORT. Another architecture's calls, and on
x86-64 those of the x32 interface, kill the process.
"""

import struct

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
AT_NUMBER, AT_ARCH, AT_FIRST, AT_SECOND = 0, 4, 16, 24
"""Where struct seccomp_data holds the number, the architecture and the low words of the first two arguments."""

NEW_NAMESPACES = 0x7E020000 | 0x80
"""Every CLONE_NEW* flag, CLONE_NEWTIME too."""
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
X32_BIT = 0x40000000

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* by the machine's name."""

DENIED = {
    # name: (x86_64, aarch64); None where the architecture has no such call
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "syslog": (103, 116),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "fanotify_init": (300, 262),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "memfd_secret": (447, 447),
    "landlock_create_ruleset": (444, 444),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
"""Calls no program in a box needs, each a way out of it, to the kernel's rarely used parts, or to another's data."""

SPECIAL = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "ioctl": (16, 29),
}
"""Calls whose arguments decide."""


def call_number(name: str, machine: str) -> int | None:
    """Number of a call the filter knows on ``machine``."""
    return {**DENIED, **SPECIAL}[name][list(ARCHES).index(machine)]


def _op(code: int, value: int, *, hit: int = 0, miss: int = 0) -> tuple[int, int, int, int]:
    return code, hit, miss, value


def instructions(machine: str, *, with_inet: bool) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value).

    Args:
        machine: ``x86_64`` or ``aarch64``.
        with_inet: allow IPv4 and IPv6 sockets, for a box with a loopback of its own.
    """
    families = [AF_UNIX, *([AF_INET, AF_INET6] if with_inet else [])]
    refused = _op(RETURN, ERRNO | EPERM)
    program = [_op(LOAD, AT_ARCH), _op(EQUAL, ARCHES[machine], hit=1), _op(RETURN, KILL), _op(LOAD, AT_NUMBER)]
    if machine == "x86_64":
        program += [_op(AT_LEAST, X32_BIT, miss=1), _op(RETURN, KILL)]
    for number in sorted(n for name in DENIED if (n := call_number(name, machine)) is not None):
        program += [_op(EQUAL, number, miss=1), refused]
    program += [_op(EQUAL, _special("clone3", machine), miss=1), _op(RETURN, ERRNO | ENOSYS)]
    program += [
        _op(EQUAL, _special("clone", machine), miss=4),
        _op(LOAD, AT_FIRST),
        _op(ANY_BIT, NEW_NAMESPACES, miss=1),
        refused,
        _op(RETURN, ALLOW),
    ]
    program += [_op(EQUAL, _special("socket", machine), miss=len(families) + 3), _op(LOAD, AT_FIRST)]
    program += [_op(EQUAL, family, hit=len(families) - place) for place, family in enumerate(families)]
    program += [_op(RETURN, ERRNO | EAFNOSUPPORT), _op(RETURN, ALLOW)]
    program += [
        _op(EQUAL, _special("ioctl", machine), miss=4),
        _op(LOAD, AT_SECOND),
        _op(EQUAL, TIOCSTI, hit=1),
        _op(EQUAL, TIOCLINUX, miss=1),
        refused,
        _op(RETURN, ALLOW),
    ]
    return program


def assembled(machine: str, *, with_inet: bool) -> bytes:
    """The filter as the kernel takes it."""
    return b"".join(struct.pack("HBBI", *line) for line in instructions(machine, with_inet=with_inet))


def _special(name: str, machine: str) -> int:
    number = call_number(name, machine)
    if number is None:
        raise ValueError(f"{name} has no number on {machine}")
    return number
