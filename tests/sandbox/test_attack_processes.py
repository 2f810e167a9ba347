"""Attacks on other processes, on the time after a call, on shared memory and sockets, on the network."""

from collections.abc import Callable, Mapping
from typing import Protocol

import pytest


class Bouts(Protocol):
    def fight(self, table: Mapping[str, tuple[str, str]], name: str, *, ends: str = "LOST", **more: object) -> None: ...


VICTIM = "import time\ntime.sleep(60)"
OTHERS = {
    "see processes of another box": ("pid_ns", "return victim()"),
    "find out what another box runs": ("pid_ns", "return read(f'/proc/{victim()}/cmdline')"),
    "change the limits of another box": (
        "pid_ns",
        "resource.prlimit(victim(), resource.RLIMIT_CORE, (0, 0))\nreturn 'changed'",
    ),
    "stop another box": ("pid_ns", "os.kill(victim(), signal.SIGSTOP)\nreturn 'stopped'"),
    "kill a process of another box": ("pid_ns", "os.kill(victim(), signal.SIGKILL)\nreturn 'killed'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_attack_on_another_box_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(OTHERS, name, victim=VICTIM)


SURVIVORS = {
    "goes on writing": "{loop}",
    "goes on in a session of its own": "setsid sh -c '{loop}' &",
    "goes on after its parent has gone": "( ( {loop} ) & ) & exit",
    "ignores every signal": "trap '' HUP INT TERM QUIT PIPE; {loop}",
}
_LOOP = "while true; do echo x >> alive{number}; sleep 0.05; done"
_PROGRAMS = [text.format(loop=_LOOP.format(number=number)) for number, text in enumerate(SURVIVORS.values())]
LEAVE = f"""
import os, subprocess, time
for program in {_PROGRAMS!r}:
    subprocess.Popen(["/bin/sh", "-c", program], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
while not all(os.path.exists(f"alive{{number}}") for number in range({len(SURVIVORS)})):
    time.sleep(0.02)
"""
GROWTH = """
before = os.path.getsize('alive{number}')
end = time.monotonic() + {patience}
while time.monotonic() < end and os.path.getsize('alive{number}') == before:
    time.sleep(0.02)
return os.path.getsize('alive{number}') > before
"""
ALIVE = {name: ("pid_ns", GROWTH.format(number=number, patience=0.3)) for number, name in enumerate(SURVIVORS)}


@pytest.mark.parametrize("name", SURVIVORS)
def test_attack_by_a_survivor_that_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(ALIVE, name, first=(LEAVE,))


IPC = {
    "read shared memory of the host": ("ipc_ns", "return libc.shmat(FACTS['segment'], None, 0) != -1"),
    "see shared memory of the host": ("ipc_ns", "return len(read('/proc/sysvipc/shm').splitlines()) > 1"),
    "find what an earlier call left in shared memory": ("ipc_ns", "return libc.shmget(4242, 4096, 0) >= 0"),
    "use a semaphore of an earlier call": ("ipc_ns", "return libc.semget(4242, 1, 0) >= 0"),
    "use a queue of an earlier call": ("ipc_ns", "return libc.msgget(4242, 0) >= 0"),
}
LEAVE_IPC = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmget(4242, 4096, 0o1666), libc.semget(4242, 1, 0o1666), libc.msgget(4242, 0o1666)
"""


@pytest.mark.parametrize("name", IPC)
def test_attack_through_shared_objects_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(IPC, name, first=(LEAVE_IPC,))


NETWORK = {
    "open an IPv4 socket": ("seccomp", "return socket.socket(socket.AF_INET)"),
    "open an IPv6 socket": ("seccomp", "return socket.socket(socket.AF_INET6)"),
    "open a datagram socket": ("seccomp", "return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"),
    "open a netlink socket": ("seccomp", "return socket.socket(16, socket.SOCK_RAW)"),
    "open a packet socket": ("seccomp capabilities", "return socket.socket(17, socket.SOCK_RAW)"),
    "open a raw socket": ("seccomp capabilities", "return socket.socket(2, socket.SOCK_RAW, 1)"),
    "open the channel to a virtual machine's host": ("seccomp", "return socket.socket(40, socket.SOCK_STREAM)"),
    "connect to a service of the host": (
        "seccomp net_ns",
        "socket.create_connection(('127.0.0.1', FACTS['port']), 2)\nreturn 'connected'",
    ),
    "connect to an abstract socket of the host": (
        "net_ns",
        "socket.socket(socket.AF_UNIX).connect('\\0' + FACTS['abstract'])\nreturn 'connected'",
    ),
    "see the host's network devices": (
        "net_ns",
        "return [line for line in read('/proc/net/dev').splitlines()[2:] if not line.strip().startswith(b'lo:')]",
    ),
    "see the host's sockets": ("net_ns", "return FACTS['abstract'].encode() in read('/proc/net/unix')"),
    "see the host's open ports": (
        "net_ns",
        "return f\"{FACTS['port']:04X}\".encode() in read('/proc/net/tcp')",
    ),
}


@pytest.mark.parametrize("name", NETWORK)
def test_attack_on_the_network_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(NETWORK, name)


MEET = """
import socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0meet me")
listener.listen()
time.sleep(60)
"""
MEETING = """
end = time.monotonic() + {patience}
while time.monotonic() < end:
    try:
        socket.socket(socket.AF_UNIX).connect('\\0meet me')
        return 'met'
    except ConnectionRefusedError:
        time.sleep(0.02)
"""


def test_attack_by_a_socket_for_another_box_is_held(duel: Callable[..., None]) -> None:
    duel(MEETING.format(patience=2), without="net_ns", victim=MEET)
