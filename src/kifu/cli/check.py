"""``kifu check``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, duration, grid, guarded, output, percent, say, size
from kifu.errors import UsageError
from kifu.training.experiment.reading import json_schema, load_experiment
from kifu.training.preflight import Preflight, preflight

app = Application()


@app.command()
@guarded
def check(
    *,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="An experiment, TOML.")] = None,
    profile: Annotated[str | None, typer.Option(help="A table under \\[profiles].")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="path.to.field=value; may be repeated.")] = None,
    measure: Annotated[bool, typer.Option(help="Run two small steps in a temporary folder.")] = True,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of experiment files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Name what an experiment lacks or contradicts, and estimate memory, time, disk and signal of its run."""
    if schema:
        document(json_schema())
        return
    if file is None:
        raise UsageError("kifu check: no experiment file given; expected a path to a TOML file, or --schema")
    found = preflight(load_experiment(file, profile=profile, overrides=sets or ()), measure=measure)
    if as_json:
        document(found.to_json())
    else:
        _print(found)
    if not found.ok:
        raise typer.Exit(UsageError.exit_code)


def _print(found: Preflight) -> None:
    _line("protocol", f"{found.name}  {found.protocol[:12]}")
    for field in found.missing:
        _line("missing", f"{field}: state it in the experiment file or in the environment's `facts`")
    if found.parameters is not None:
        _line("model", f"{found.parameters:,} parameters")
    unmeasured = "not measured"
    _line("memory", unmeasured if found.memory_bytes is None else size(found.memory_bytes))
    _line("time", unmeasured if found.step_s is None else f"at most {duration(found.step_s)} a step")
    if found.run_s is not None:
        _line("", f"at most {duration(found.run_s)} in all, evaluations aside")
    _line("disk", f"about {size(found.disk_bytes)} of {size(found.disk_free_bytes)} free")
    if found.groups:
        _line("groups", f"{found.informative} of {found.groups} measured ones had different rewards")
    for at, stage in enumerate(found.stages, 1):
        begins = "" if stage.start is None else f", begins with the weights of {stage.start}"
        begins += "" if stage.data is None else f", on the records of {stage.data}"
        card = stage.card
        _line(f"stage {at}", f"{stage.name}  {stage.steps} steps of {stage.method}{begins}")
        _line("", f"{card.name}. {card.source}")
        discount = "" if stage.gamma is None else f"; discount of returns {stage.gamma:g}"
        _line("", f"learns from {', '.join(card.feedback)}; updates {card.updates}{discount}")
        for cost in stage.costs:
            _line("", f"cost in {cost}")
    table = grid("mean reward without a model", "agent", "tasks", "mean", "low", "high")
    for score in found.scores:
        table.add_row(*cells(score.agent, score.tasks, percent(score.mean), percent(score.low), percent(score.high)))
    output().print(table)
    for warning in found.warnings:
        _line("warning", warning)
    say("ready" if found.ok else "not ready")


def _line(label: str, text: str) -> None:
    say(f"{label:<10} {text}")
