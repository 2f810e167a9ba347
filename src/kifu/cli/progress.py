"""Progress of long commands, on standard error and only on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kifu.cli.console import progress


@contextmanager
def counting(what: str, *, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that is told how many are done and how many there are (0: not known)."""
    console = progress()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
