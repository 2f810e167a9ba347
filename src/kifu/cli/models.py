"""``kifu models``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, say, size
from kifu.cli.progress import counting
from kifu.errors import ModelError
from kifu.models import ModelFolder, cache_root, open_folder
from kifu.models import pull as pull_model

app = Application(invoke_without_command=True)


def _facts(model: ModelFolder) -> dict[str, Any]:
    files = [path for path in model.path.iterdir() if path.is_file()]
    return {
        "name": model.path.name,
        "path": str(model.path),
        "architecture": model.architecture,
        "parameters": model.num_parameters,
        "bytes": sum(path.stat().st_size for path in files),
        "licence": model.licence,
        "source": model.source,
        "digests": asdict(model.digests),
    }


def _describe(model: ModelFolder, *, as_json: bool) -> None:
    facts = _facts(model)
    if as_json:
        document(facts)
        return
    digests = facts.pop("digests")
    for name, value in facts.items():
        say(f"{name:<13} {size(value) if name == 'bytes' else value}")
    for name, value in digests.items():
        say(f"{name:<13} {value}")


@app.callback()
def _alone(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Get and describe models; without a command those in the cache are listed."""
    if context.invoked_subcommand is None:
        listed(as_json=as_json)


@app.command("list")
@guarded
def listed(*, as_json: AsJson = False) -> None:
    """Models in the cache."""
    folder = cache_root() / "models"
    found = []
    for path in sorted(folder.glob("*/config.json")):
        try:
            found.append(_facts(open_folder(path.parent)))
        except ModelError as damaged:
            found.append({"name": path.parent.name, "path": str(path.parent), "problem": str(damaged)})
    if as_json:
        document({"cache": str(folder), "models": found})
        return
    table = grid("", "name", "parameters", "size", "licence", "source")
    for item in found:
        if "problem" in item:
            table.add_row(*cells(item["name"], "-", "-", "-", item["problem"]))
        else:
            figures = f"{item['parameters']:,}", size(item["bytes"])
            table.add_row(*cells(item["name"], *figures, item["licence"] or "unknown", item["source"]))
    output().print(table)
    say(f"cache {folder}")


@app.command()
@guarded
def pull(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name such as smollm2-135m, a hub id, or a path.")],
    as_json: AsJson = False,
) -> None:
    """Get a model; what is already there is not fetched again."""
    with counting("getting the model", unit="bytes") as told:
        model = pull_model(name, progress=lambda _, done, total: told(done, total))
    _describe(model, as_json=as_json)


@app.command()
@guarded
def show(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name in the cache, or a folder.")],
    as_json: AsJson = False,
) -> None:
    """Describe a model that is here, with its digests."""
    cached = cache_root() / "models" / name.replace("/", "--")
    path = cached if cached.is_dir() else Path(name)
    if not path.is_dir():
        raise ModelError(f"no model `{name}` in {cached.parent} and no such folder; `kifu models pull {name}` gets it")
    _describe(open_folder(path), as_json=as_json)
