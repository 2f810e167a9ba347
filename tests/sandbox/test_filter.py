"""The filter, run by an interpreter of classic BPF written here from its manual, on both architectures."""

import re
import struct
from pathlib import Path

import pytest

from kifu.sandbox.ns.filter import ARCHES, DENIED, SPECIAL, assembled, call_number, instructions
from kifu.sandbox.ns.kernel import CALLS

KILL, ALLOW = "kill", "allow"
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}


def run(code: bytes, *, number: int, arch: int, arguments: tuple[int, ...] = ()) -> str | int:
    """What the kernel would do: kill, allow, or fail with an error number."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0x1234, *padded)
    program = [struct.unpack_from("<HBBI", code, place) for place in range(0, len(code), 8)]
    accumulator, counter = 0, 0
    while True:
        operation, hit, miss, value = program[counter]
        counter += 1
        if operation == 0x20:  # load a word
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x06:  # return
            names = {0x7FFF0000: ALLOW, 0x80000000: KILL}
            return names.get(value) or value & 0xFFFF
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            counter += hit if test else miss


@pytest.mark.parametrize("machine", ARCHES)
def test_every_denied_call_fails_with_eperm(machine: str) -> None:
    code = assembled(machine, with_inet=False)
    numbers = {name: call_number(name, machine) for name in DENIED}
    wrong = {
        name: found
        for name, number in numbers.items()
        if number is not None and (found := run(code, number=number, arch=ARCHES[machine])) != 1
    }
    assert wrong == {}


@pytest.mark.parametrize("machine", ARCHES)
def test_every_other_call_is_allowed(machine: str) -> None:
    code = assembled(machine, with_inet=False)
    known = {call_number(name, machine) for name in (*DENIED, *SPECIAL)}
    others = [number for number in range(500) if number not in known]
    assert {run(code, number=number, arch=ARCHES[machine]) for number in others} == {ALLOW}


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7])
def test_calls_of_another_architecture_kill(machine: str, arch: int) -> None:
    code = assembled(machine, with_inet=True)
    expected = ALLOW if arch == ARCHES[machine] else KILL
    assert run(code, number=0, arch=arch) == expected


def test_x32_calls_kill() -> None:
    code = assembled("x86_64", with_inet=False)
    assert run(code, number=0x40000000, arch=ARCHES["x86_64"]) == KILL
    assert run(code, number=0x40000001, arch=ARCHES["x86_64"]) == KILL
    assert run(code, number=0xFFFFFFFF, arch=ARCHES["x86_64"]) == KILL


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (0x00000011, ALLOW),  # a plain fork
        (0x003D0F00, ALLOW),  # a thread
        (0x00004111, ALLOW),  # vfork
        (0x10000000, 1),
        (0x00020000, 1),
        (0x20000000, 1),
        (0x40000000, 1),
        (0x08000000, 1),
        (0x04000000, 1),
        (0x02000000, 1),
        (0x00000080, 1),  # a time namespace
        (0x7E020000, 1),
    ],
)
def test_clone_is_allowed_without_new_namespaces(machine: str, flag: int, expected: str | int) -> None:
    code = assembled(machine, with_inet=False)
    number = SPECIAL["clone"][list(ARCHES).index(machine)]
    assert run(code, number=number, arch=ARCHES[machine], arguments=(flag,)) == expected


@pytest.mark.parametrize("machine", ARCHES)
def test_clone3_does_not_exist(machine: str) -> None:
    assert run(assembled(machine, with_inet=False), number=435, arch=ARCHES[machine]) == 38


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("with_inet", [False, True])
def test_sockets_are_allowed_by_family(machine: str, with_inet: bool) -> None:
    code = assembled(machine, with_inet=with_inet)
    number = SPECIAL["socket"][list(ARCHES).index(machine)]
    allowed = {
        family
        for family in range(64)
        if run(code, number=number, arch=ARCHES[machine], arguments=(family, 1, 0)) == ALLOW
    }
    assert allowed == ({1, 2, 10} if with_inet else {1})
    assert run(code, number=number, arch=ARCHES[machine], arguments=(40, 1, 0)) == 97


@pytest.mark.parametrize("machine", ARCHES)
def test_typing_into_a_terminal_is_refused(machine: str) -> None:
    code = assembled(machine, with_inet=False)
    number = SPECIAL["ioctl"][list(ARCHES).index(machine)]
    requests = {0x5412: 1, 0x541C: 1, 0x5401: ALLOW, 0x5413: ALLOW, 0x1_0000_5412: 1}
    found = {value: run(code, number=number, arch=ARCHES[machine], arguments=(0, value)) for value in requests}
    assert found == requests


@pytest.mark.parametrize("machine", ARCHES)
def test_every_jump_stays_inside(machine: str) -> None:
    program = instructions(machine, with_inet=True)
    ends = [place + 1 + max(hit, miss) for place, (_, hit, miss, _) in enumerate(program)]
    assert max(ends) <= len(program) - 1 + 1
    assert program[-1][0] == 0x06


@pytest.mark.parametrize("machine", ARCHES)
def test_numbers_are_the_kernel_headers(machine: str) -> None:
    """Against the headers of this machine, where they are installed; a call newer than them cannot be compared."""
    path, pattern = HEADERS[machine]
    if not Path(path).exists():
        assert len({call_number(name, machine) for name in DENIED if call_number(name, machine) is not None}) > 50
        return
    known = {name: int(number) for name, number in re.findall(pattern, Path(path).read_text())}
    ours = {name: call_number(name, machine) for name in (*DENIED, *SPECIAL)} | dict(CALLS[machine])
    assert {name: number for name, number in ours.items() if name in known and known[name] != number} == {}
    assert len(known.keys() & ours.keys()) > 60
