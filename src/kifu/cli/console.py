"""What all commands share: output for people and for programs, errors with their exit codes."""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from typing import Annotated, Any, ParamSpec, TextIO, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kifu.cli.interrupted import interrupted_message, told
from kifu.dashboard.text import printable
from kifu.errors import KifuError, StorageError, shortened

Parameters = ParamSpec("Parameters")

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on standard output.")]
INTERRUPTED = 130
_OUTPUT: ContextVar[TextIO | None] = ContextVar("_OUTPUT", default=None)
"""Standard output of a command with ``--json``, while what foreign code prints goes to standard error."""
_PIPE_WIDTH = 200
"""Columns of tables that no terminal limits."""


def output() -> Console:
    """Standard output for people: nothing is marked up by accident, lines are not cut."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True, width=width)


def progress() -> Console:
    """Standard error, where progress and errors go."""
    return Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """One line or more for people; control characters are shown, not obeyed."""
    output().print(Text(printable(text)))


def document(value: Any) -> None:  # noqa: ANN401 (a JSON tree)
    """The one JSON document of ``--json``."""
    out = _OUTPUT.get() or sys.stdout
    out.write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n")
    out.flush()


def grid(title: str, *columns: str) -> Table:
    """A table for people."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def cells(*values: object) -> list[Text]:
    """A row of a table; control characters are shown, not obeyed."""
    return [Text("" if value is None else printable(str(value))) for value in values]


def help_if_alone(context: typer.Context) -> None:
    """The help of a group that was called without one of its commands; asking what there is is no error."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def percent(value: float | None) -> str:
    """A share as people read it; a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


def counted(number: int, one: str, many: str) -> str:
    """A number and what it counts: 1 try, 2 tries."""
    return f"{number:,} {one if number == 1 else many}"


def plain(value: object) -> str:
    """A value as people read it: yes and no, items of a list one after the other, nothing for nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "  ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(plain, value))
    return "none" if value is None else str(value)


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    return (
        f"{seconds:.1f} s"
        if seconds < 60
        else f"{seconds / 60:.1f} min"
        if seconds < 3600
        else f"{seconds / 3600:.1f} h"
    )


def size(count: int | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def guarded(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Turn what a command raises into a message and an exit code.

    An expected failure is one ``error:`` message without a traceback. So is an unexpected one, unless ``KIFU_DEBUG=1``
    asks for its traceback. An interruption ends with 130.
    With ``--json`` the one document then holds ``error`` and ``exit_code``.
    """

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            with _alone() if as_json else nullcontext():
                command(*args, **kwargs)
        except KifuError as error:
            raise _failed(str(error), error.exit_code, error, as_json=as_json) from error
        except KeyboardInterrupt as stopped:
            raise _failed(interrupted_message(), INTERRUPTED, None, as_json=as_json) from stopped
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except OSError as error:
            where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            what = f"{where}{error.strerror or error}. Mend that file or folder, or name another."
            raise _failed(what, StorageError.exit_code, error, as_json=as_json) from error
        except Exception as error:
            if os.environ.get("KIFU_DEBUG") == "1":
                raise
            what = f"unexpected {type(error).__name__}: {error}. KIFU_DEBUG=1 shows where; please report it."
            raise _failed(what, 1, error, as_json=as_json) from error

    return run


@contextmanager
def _alone() -> Iterator[None]:
    """Keep standard output for `document`: what an environment prints goes to standard error."""
    kept = _OUTPUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _OUTPUT.reset(kept)


def _failed(message: str, code: int, error: BaseException | None, *, as_json: bool) -> typer.Exit:
    if error is not None and os.environ.get("KIFU_DEBUG") == "1":
        progress().print_exception()
    if code == INTERRUPTED:
        told()
    said = printable(shortened(message))
    progress().print(Text(f"error: {said}"))
    if as_json:
        document({"error": said, "exit_code": code})
    return typer.Exit(code)
