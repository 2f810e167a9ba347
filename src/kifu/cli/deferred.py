"""Commands that are loaded when they run."""

from importlib import import_module

import typer

from kifu.cli.console import guarded
from kifu.cli.interrupted import runs
from kifu.errors import UsageError, install_hint


def load(where: str, *, command: str) -> typer.Typer:
    """The command written at ``module:name``.

    Raises:
        UsageError: a package it needs is not installed.
    """
    module, attribute = where.split(":")
    try:
        found: typer.Typer = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"`{command}` needs the package `{missing.name}`, which is not installed: {install_hint(missing.name)}"
        ) from missing
    return found


def defer(app: typer.Typer, name: str, *, where: str, summary: str) -> None:
    """Give ``app`` a command that hands every argument to the one written at ``where``.

    Args:
        app: gets the command.
        name: of the command.
        where: ``module:name`` of its own application.
        summary: its line in the help.
    """

    @app.command(
        name,
        help=summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @guarded
    def run(context: typer.Context) -> None:
        runs(context.command_path)
        load(where, command=context.command_path)(args=context.args, prog_name=context.command_path)
