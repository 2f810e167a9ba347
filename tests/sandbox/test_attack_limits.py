"""Attacks by taking too much: processes, memory, disk, time, output."""

from collections.abc import Callable, Mapping
from typing import Protocol

import pytest


class Bouts(Protocol):
    def fight(self, table: Mapping[str, tuple[str, str]], name: str, *, ends: str = "LOST", **more: object) -> None: ...


MB = 1 << 20
LIMITS = {
    "pids": 20,
    "mem_process_bytes": 300 * MB,
    "disk_bytes": 2 * MB,
    "inodes": 300,
    "tmp_bytes": MB,
    "file_bytes": 3 * MB,
    "open_files": 64,
}
TAKES = {
    "fork without end": (
        "limit_processes",
        """
        made = []
        try:
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    time.sleep(5)
                    os._exit(0)
                made.append(pid)
        except OSError:
            pass
        for pid in made:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return len(made) == 40
        """,
    ),
    "start threads without end": (
        "limit_processes",
        """
        made = 0
        threading.stack_size(1 << 16)
        end = threading.Event()
        try:
            for _ in range(40):
                threading.Thread(target=end.wait, args=(5,)).start()
                made += 1
        except RuntimeError:
            pass
        end.set()
        return made == 40
        """,
    ),
    "take all memory in one process": ("limit_memory", "return len(bytearray(600 << 20))"),
    "map memory without using it": ("limit_memory", "return len(mmap.mmap(-1, 4 << 30))"),
    "fill the box": (
        "disk_quota",
        """
        for name in 'abcd':
            with open(name, 'wb') as out:
                out.write(bytes(2 << 20))
        return True
        """,
    ),
    "fill the box with small files": (
        "disk_quota",
        "[open(f'f{n}', 'w').close() for n in range(600)]\nreturn True",
    ),
    "fill the box with folders in folders": (
        "disk_quota",
        "for n in range(600):\n    os.mkdir('d')\n    os.chdir('d')\nreturn True",
    ),
    "fill the temporary folder": ("tmp_quota", "open('/tmp/big', 'wb').write(bytes(2 << 20))\nreturn True"),
    "fill shared memory": ("tmp_quota", "open('/dev/shm/big', 'wb').write(bytes(2 << 20))\nreturn True"),
    "fill the temporary folder with small files": (
        "tmp_quota",
        "[open(f'/tmp/f{n}', 'w').close() for n in range(5000)]\nreturn True",
    ),
    "make one file too long": (
        "limit_file",
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.truncate(os.open('big', os.O_CREAT | os.O_RDWR), 4 << 20)
        return True
        """,
    ),
    "write far into one file": (
        "limit_file",
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return os.pwrite(os.open('big', os.O_CREAT | os.O_RDWR), b'x', 5 << 20)
        """,
    ),
    "open files without end": ("limit_open_files", "return [os.open('/', os.O_RDONLY) for _ in range(100)]"),
    "lift the limit of open files": (
        "limit_open_files",
        """
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        except ValueError:
            return False
        return resource.getrlimit(resource.RLIMIT_NOFILE)
        """,
    ),
}


@pytest.mark.parametrize("name", TAKES)
def test_attack_by_taking_too_much_is_held(bouts: Bouts, name: str) -> None:
    bouts.fight(TAKES, name, limits=LIMITS)


HOARD = """
made = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        held = bytearray(40 << 20)
        held[::4096] = b'x' * len(held[::4096])
        time.sleep(0.6)
        os._exit(0)
    made.append(pid)
return all(os.waitpid(pid, 0)[1] == 0 for pid in made)
"""
BREAKS = {
    "take all memory in many processes": ("memory_watch", HOARD, {"mem_total_bytes": 100 * MB}, "mem_limit"),
    "outstay the time": ("wall_clock", "time.sleep(0.6)\nreturn True", {"wall_s": 0.3}, "timeout"),
    "outstay the time and ignore every signal": (
        "wall_clock",
        """
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(0.6)
        return True
        """,
        {"wall_s": 0.3},
        "timeout",
    ),
    "outstay the time in children": (
        "wall_clock",
        """
        pids = [os.fork() for _ in range(3)]
        if 0 in pids:
            os.setsid()
            time.sleep(0.6)
            os._exit(0)
        return all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
        """,
        {"wall_s": 0.3},
        "timeout",
    ),
    "write without end": (
        "output_limit",
        "sys.stdout.write('x' * (7 << 20))\nreturn True",
        {"output_kill_bytes": MB, "output_keep_bytes": 8 * MB},
        "output_limit",
    ),
    "write errors without end": (
        "output_limit",
        "sys.stderr.write('x' * (4 << 20))\nreturn True",
        {"output_kill_bytes": MB},
        "output_limit",
    ),
    "use all of a processor": (
        "limit_cpu",
        "end = time.process_time() + 1.3\nwhile time.process_time() < end:\n    pass\nreturn True",
        {"cpu_s": 1},
        "signal",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_attack_by_breaking_a_limit_ends_the_call(duel: Callable[..., None], name: str) -> None:
    without, body, limits, ends = BREAKS[name]
    duel(body, without=without, limits=limits, ends=ends)
