"""The command's entry."""

import os
import signal
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.commands import COMMANDS
from kifu.cli.console import INTERRUPTED, help_if_alone
from kifu.cli.deferred import defer
from kifu.cli.interrupted import interrupted_message, was_told
from kifu.training.stopping import asked_to_end

app = Application(name="kifu", invoke_without_command=True)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kifu {version('kifu')}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement learning of LLM agents on records that can be trusted."""
    help_if_alone(context)


for _name, (_where, _summary) in COMMANDS.items():
    defer(app, _name, where=_where, summary=_summary)


def main() -> None:
    """Run the command of ``sys.argv``."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # standard error shows kifu's own progress
    for number in asked_to_end():  # whichever it is and whenever it comes, it ends a command as Ctrl-C does
        if number is not signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
    try:
        app(prog_name="kifu")
    except (KeyboardInterrupt, SystemExit) as ended:  # typer makes the one the other where no command caught it
        if isinstance(ended, SystemExit) and (ended.code != INTERRUPTED or was_told()):
            raise
        sys.stderr.write(f"error: {interrupted_message()}\n")
        sys.exit(INTERRUPTED)
