"""Attacks on the host's files, on what a box must not change, and on what would tell it where it runs."""

from collections.abc import Callable, Mapping
from typing import Protocol

import pytest


class Bouts(Protocol):
    def fight(self, table: Mapping[str, tuple[str, str]], name: str, *, ends: str = "LOST", **more: object) -> None: ...


FILES = {
    "read a file of the host": (
        "private_root",
        "return read(FACTS['file'])",
    ),
    "read a private file of the supervisor": (
        "private_root uid_drop",
        "return read(FACTS['private'])",
    ),
    "list the host's temporary folder": (
        "private_root",
        "return os.listdir(FACTS['folder'])",
    ),
    "change a file of the host": (
        "private_root",
        """
        with open(FACTS['writable'], 'r+') as out:
            return out.write('changed') and os.path.samefile(FACTS['writable'], out.fileno())
        """,
    ),
    "read the host's list of users": (
        "private_root",
        "return b'root:' in read('/etc/passwd')",
    ),
    "see the host's devices": (
        "private_root",
        "return len(os.listdir('/dev')) > 20",
    ),
    "see the kernel's objects": (
        "private_root",
        "return os.listdir('/sys')",
    ),
    "see the host's services": (
        "private_root",
        "return os.listdir('/run')",
    ),
    "see the host's logs and databases": (
        "private_root",
        "return os.listdir('/var')",
    ),
    "see the host's home folders": (
        "private_root",
        "return os.path.exists('/root') or os.path.exists('/home')",
    ),
    "see the host's disks in the list of mounts": (
        "private_root",
        "return b' - ext' in read('/proc/self/mountinfo') or b'cgroup' in read('/proc/self/mountinfo')",
    ),
    "follow the root of process 1": (
        "undumpable",
        "return os.readlink('/proc/1/root')",
    ),
    "connect to a socket file of the host": (
        "private_root",
        """
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(FACTS['path_socket'])
        return 'connected'
        """,
    ),
    "write to the root folder": (
        "read_only_root",
        """
        os.mkdir('/planted')
        return os.path.isdir('/planted')
        """,
    ),
    "replace the list of users": (
        "read_only_root",
        """
        with open('/etc/passwd', 'w') as out:
            return out.write('root::0:0::/:/bin/sh\\n')
        """,
    ),
    "replace the folder of programs": (
        "read_only_root",
        """
        os.rename('/bin', '/bin2')
        return os.path.islink('/bin2')
        """,
    ),
    "plant a device name": (
        "read_only_root",
        "return os.open('/dev/planted', os.O_CREAT | os.O_WRONLY)",
    ),
    "leave something for another box in the shared template": (
        "read_only_root",
        "return os.open('/usr2', os.O_CREAT | os.O_WRONLY)",
    ),
    "tell the machine by its processor": (
        "static_proc",
        "return b'flags' in read('/proc/cpuinfo') or b'Features' in read('/proc/cpuinfo')",
    ),
    "tell the machine by its boot": (
        "static_proc",
        "return FACTS['boot_id'].encode() in read('/proc/sys/kernel/random/boot_id')",
    ),
    "tell the machine by its kernel": (
        "static_proc",
        "return FACTS['kernel'].encode() in read('/proc/version')",
    ),
    "tell the time since the start of the machine": (
        "static_proc",
        "return float(read('/proc/uptime').split()[0]) > 1",
    ),
    "tell how much memory the machine has": (
        "static_proc",
        "return b'Buffers' in read('/proc/meminfo')",
    ),
    "see how the kernel was started": (
        "static_proc",
        "return len(read('/proc/cmdline')) > 1",
    ),
    "tell how busy others keep the machine": (
        "static_proc",
        "return b'intr' in read('/proc/stat')",
    ),
    "read the host's name": (
        "uts_ns",
        "return socket.gethostname() == FACTS['host']",
    ),
}
"""Name to the protections it is up against and its body."""


@pytest.mark.parametrize("name", FILES)
def test_attack_on_files_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(FILES, name)


SECRETS = {
    "read the supervisor's environment": (
        "clean_env",
        "return os.environ['KIFU_TEST_SECRET'] if 'KIFU_TEST_SECRET' in os.environ else None",
    ),
    "read the arguments of process 1": (
        "wipe_argv undumpable",
        "return b'import' in read('/proc/1/cmdline') or b'python' in read('/proc/1/cmdline')",
    ),
    "read the environment of process 1": (
        "undumpable",
        "read('/proc/1/environ')\nreturn 'readable'",
    ),
    "read the memory map of process 1": (
        "undumpable",
        "return read('/proc/1/maps')",
    ),
    "list the descriptors of process 1": (
        "undumpable",
        "return os.listdir('/proc/1/fd')",
    ),
    "find the interpreter of process 1": (
        "undumpable",
        "return os.readlink('/proc/1/exe')",
    ),
    "read the stack limits of process 1": (
        "undumpable",
        "return read('/proc/1/auxv')",
    ),
}


@pytest.mark.parametrize("name", SECRETS)
def test_attack_on_secrets_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(SECRETS, name)


HANDLES = {
    "find an open descriptor": "return [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]",
    "write to the report of its own call": """
        for fd in range(3, 64):
            try:
                return os.write(fd, b' ')
            except OSError:
                continue
        """,
}


@pytest.mark.parametrize("name", HANDLES)
def test_attack_on_descriptors_is_held(duel: Callable[..., None], name: str) -> None:
    duel(HANDLES[name], without="close_fds")
