"""Ctrl-C and other signals that ask for an end, while a run works."""

import signal
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import TypeAlias

from kifu.errors import InterruptedRun

_Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_ASKED = (signal.SIGINT, signal.SIGTERM)
"""By a user, by a scheduler that wants the machine back."""


def asked_to_end() -> tuple[signal.Signals, ...]:
    """Signals that ask this process to end; a terminal that closes asks too, unless it is ignored as by ``nohup``."""
    closes = getattr(signal, "SIGHUP", None)
    return _ASKED if closes is None or signal.getsignal(closes) is signal.SIG_IGN else (*_ASKED, closes)


@contextmanager
def stoppable(stop: Callable[[], None], running: AbstractEventLoop) -> Iterator[None]:
    """Let the first signal call ``stop`` on the event loop, and a second Ctrl-C interrupt whatever runs.

    The second one is for code of an environment that blocks the loop, where nothing on it would ever be called.
    Outside the main thread nothing changes: whoever started the thread decides what a signal means.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = 0

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        running.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, hear) for number in asked_to_end()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def told_in_a_line() -> None:
    """Let an interruption that a script does not catch end it as it ends a command: its message and exit code 130.

    Every other error is shown as before.
    """
    if not (isinstance(sys.excepthook, partial) and sys.excepthook.func is _told):
        sys.excepthook = partial(_told, otherwise=sys.excepthook)


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None, *, otherwise: _Hook) -> None:
    if not isinstance(error, InterruptedRun):
        otherwise(kind, error, trace)
        return
    sys.stderr.write(f"{error}\n")
    sys.exit(error.exit_code)
