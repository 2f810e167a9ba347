"""This process's makers of bugs: one for each package, started when first asked for and closed at exit."""

import atexit
import contextlib
import os
import threading

from kifu.envs.repositories.bugs import BugMaker
from kifu.envs.repositories.packages import open_package
from kifu.verify import Workshop, suite_workshop

_lock = threading.RLock()
_makers: dict[tuple[int, str], BugMaker] = {}
_workshops: dict[int, Workshop] = {}
_open = contextlib.ExitStack()


def maker_of(package: str) -> BugMaker:
    """The maker of a package's bugs, with its judge.

    Raises:
        UsageError: nobody knows the package, or it cannot be had.
    """
    key = os.getpid(), package
    with _lock:
        if key not in _makers:
            if key[0] not in _workshops:
                _workshops[key[0]] = _open.enter_context(suite_workshop())
            made = BugMaker(open_package(package), workshop=_workshops[key[0]])
            _open.callback(made.close)
            _makers[key] = made
        return _makers[key]


def close_makers() -> None:
    """Close what this process started."""
    with _lock:
        _makers.clear()
        _workshops.clear()
        _open.close()


atexit.register(close_makers)
