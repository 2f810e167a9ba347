"""A test hook: kill this process at a named point, to prove that the run folder survives it.

``KIFU_CRASH_AT=part.after_rename`` kills at the first passage of that point, ``KIFU_CRASH_AT=part.after_rename#3`` at
the third. Unset, a point costs one look into the environment.
"""

import os
import signal
from collections import Counter

VARIABLE = "KIFU_CRASH_AT"

CRASH_POINTS: tuple[str, ...] = (
    "wal.before_fsync",
    "wal.after_fsync",
    "part.before_rename",
    "part.after_rename",
    "manifest.before_line",
    "manifest.before_fsync",
    "manifest.after_line",
    "wal.before_cut",
    "wal.after_cut",
    "plan.before_line",
    "plan.before_fsync",
    "plan.after_line",
    "version.before_rename",
    "version.after_rename",
    "versions.before_line",
    "versions.before_fsync",
    "versions.after_line",
)
"""Every point this room passes; rooms above add their own names."""

_passages: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Die here by SIGKILL, without any clean-up, when the environment variable names this point."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passages[name] += 1
    point, _, passage = wanted.partition("#")
    if point == name and _passages[name] == int(passage or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
