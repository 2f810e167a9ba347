"""``kifu init``."""

import keyword
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.cli.starters import STARTERS
from kifu.errors import StorageError, UsageError

app = Application()


@app.command()
@guarded
def init(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the experiment: a Python identifier.")],
    kind: Annotated[
        Literal["tool", "single"], typer.Option(help="tool: an environment with tools; single: questions and a reward.")
    ] = "tool",
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a starter environment and an experiment that runs in seconds."""
    if not name.isidentifier() or name != name.lower():
        raise UsageError(f"kifu init: found name {name!r}, expected a lower-case Python identifier, e.g. my_safe")
    files = {pattern.format(name=name): text.replace("NAME", name) for pattern, text in STARTERS[kind].items()}
    there = [str(folder / file) for file in files if (folder / file).exists()]
    if there:
        raise StorageError(f"{there[0]}: exists already, and `kifu init` overwrites nothing; choose another name")
    if keyword.iskeyword(name) or find_spec(name) is not None:
        why = "a word of the language" if keyword.iskeyword(name) else f"installed, and {name}.py would hide it"
        raise UsageError(f"kifu init: found name `{name}`, which is {why}; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    experiment = folder / f"{name}.toml"
    if as_json:
        document({"experiment": str(experiment), "files": [str(folder / file) for file in files]})
        return
    for file in files:
        say(f"wrote  {folder / file}")
    say(f"next   kifu check {experiment} · kifu train {experiment}")
