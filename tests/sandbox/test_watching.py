"""Reading the memory of a call from outside."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from kifu.sandbox.watching import memory_of

CHILD = "import sys; held = bytearray(40 << 20); print(flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def with_child(check: Callable[[int], None]) -> None:
    """Call with the number of a process whose child holds 40 MB."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        check(parent.pid)
        parent.communicate()


def test_what_children_hold_is_counted() -> None:
    def check(pid: int) -> None:
        assert 40 << 20 <= memory_of(pid, 1 << 40) < 120 << 20

    with_child(check)


def test_a_process_that_has_ended_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_of(process.pid, 1 << 40) == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_cannot_be_read_is_not_taken_for_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: with no descriptor left, the limit of memory was kept by nobody."""

    def check(pid: int) -> None:
        def refused(*_: object, **__: object) -> object:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", refused)
            with pytest.raises(OSError, match=os.strerror(number)):
                memory_of(pid, 1 << 40)

    with_child(check)
