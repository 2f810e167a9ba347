"""What Ctrl-C left of a command, and what to do next."""

from collections.abc import Mapping
from contextvars import ContextVar

_READS = "It changes nothing of what it reads. Give the command again."
_LEFT: Mapping[str, str] = {
    "train": "The run had not begun and nothing of it was kept. Give the command again.",
    "resume": "The run is as it was; what it had accepted is kept. Give the command again.",
    "eval": "No result was written and the run is as it was. Give the command again.",
    "report": "No page was written; one that stood there is as it was. Give the command again.",
    "export": "Nothing was left of it where it was to be written. Give the command again.",
    "models": "A model is put in its place when it is whole, so none is half there. Give the command again.",
    "init": "Files already written stay; remove them, or choose another name, before giving the command again.",
    "gateway": "What it had recorded is kept: `kifu show RUN` and `kifu audit RUN` read it.",
}
"""By the first word after ``kifu``; the other commands only read."""

_RUNNING: ContextVar[str] = ContextVar("_RUNNING", default="")
_TOLD: ContextVar[bool] = ContextVar("_TOLD", default=False)


def runs(command: str) -> None:
    """Note the command that runs from now on, as its user called it: ``kifu audit``."""
    _RUNNING.set(command)
    _TOLD.set(False)


def told() -> None:
    """Note that the user was told of the interruption."""
    _TOLD.set(True)


def was_told() -> bool:
    """Whether a message stands on standard error already."""
    return _TOLD.get()


def interrupted_message() -> str:
    """What was interrupted and what to do, for the command that runs now."""
    command = _RUNNING.get()
    words = command.split()
    if len(words) < 2:
        return f"interrupted before it began. {_READS}"
    return f"interrupted: `{command}` had not finished. {_LEFT.get(words[1], _READS)}"
