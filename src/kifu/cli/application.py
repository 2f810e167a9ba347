"""What every application of the command has in common, and usage lines in the usual notation."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])


class Application(typer.Typer):
    """Without shell completion and without typer's own tracebacks.

    Args:
        name: of the program, for the outermost one.
        invoke_without_command: whether a group called alone runs its callback.
    """

    def __init__(self, *, name: str | None = None, invoke_without_command: bool = False) -> None:
        super().__init__(
            name=name,
            invoke_without_command=invoke_without_command,
            add_completion=False,
            pretty_exceptions_enable=False,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:  # noqa: ANN401 (typer's)
        """A command with a usage line in the usual notation."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    """Writes a required argument as ``RUN`` and an optional one as ``[RUN]``; typer puts the first into braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 (the type of a context is typer's own)
        """Options and arguments as the usage line shows them."""
        return [re.sub(r"^\{(.+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]
