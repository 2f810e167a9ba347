"""``kifu train``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, guarded
from kifu.cli.results import show_result
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train as run_experiment

app = Application()


@app.command()
@guarded
def train(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment, TOML.")],
    seed: Annotated[int, typer.Option(help="Of the run; stands in every record.")] = 0,
    profile: Annotated[str | None, typer.Option(help="A table under \\[profiles], e.g. check, quick, full.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name>-seed<seed> by default.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="path.to.field=value; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment from its beginning. Ctrl-C stops it so that `kifu resume` goes on."""
    loaded = load_experiment(file, profile=profile, overrides=sets or ())
    show_result(run_experiment(loaded, out=out, seed=seed), as_json=as_json)
