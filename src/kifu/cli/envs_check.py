"""``kifu envs check``."""

from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.envs import resolve_environment
from kifu.testing import check_env

app = Application()


_SHOWN = 12


def _first(problem: str) -> str:
    lines = problem.splitlines()
    more = [f"and {len(lines) - _SHOWN} more; --json lists all"] if len(lines) > _SHOWN else []
    return "\n".join([*lines[:_SHOWN], *more])


@app.command()
@guarded
def check(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A built-in name, module:Class, file.py:Class or tasks.jsonl@REWARD.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run the contract's checker over an environment; exit 1 when it breaks the contract."""
    problem: str | None = None
    try:
        check_env(resolve_environment(name))
    except AssertionError as broken:
        problem = str(broken)
    if as_json:
        document({"environment": name, "ok": problem is None, "problem": problem})
    else:
        say(f"{name}: " + ("keeps the contract" if problem is None else _first(problem)))
    if problem is not None:
        raise typer.Exit(1)
