"""``kifu credit``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, plain, say
from kifu.errors import UsageError
from kifu.training.inspection.explain import explain_file, explain_step

app = Application()


@app.command()
@guarded
def credit(
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Trajectories, JSON; docs/credit.md lists the fields.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="A method; that of the run by default.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run folder instead of a file.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what would be trained and why: advantage, weight, ratio, clip and loss of every token."""
    if (file is None) == (run is None):
        raise UsageError("kifu credit: expected either a FILE of trajectories or --run RUN --step N")
    if run is not None:
        if step is None:
            raise UsageError("kifu credit --run: expected --step N, the step to look at")
        found = explain_step(run, step, algorithm=algorithm)
    else:
        if step is not None:
            raise UsageError("kifu credit: --step belongs to --run; a file is one update")
        if algorithm is None:
            raise UsageError("kifu credit FILE: expected --algorithm ID; `kifu algorithms` lists them")
        assert file is not None
        found = explain_file(file, algorithm=algorithm)
    if as_json:
        document(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    over = found["denominators"]
    say(f"{found['algorithm']}  {plain(found['settings'])}")
    for group in found["groups"]:
        for item in group["trajectories"]:
            say("")
            left_out = "" if item["filtered"] is None else f"  left out: {item['filtered']}"
            times = f"  stands {item['copies']} times in the update" if item["copies"] > 1 else ""
            say(f"{group.get('task') or 'task'}  {item['id']}  reward {plain(item.get('reward'))}{left_out}{times}")
            if item["copies"]:
                output().print(_table(item))
    say("")
    say("  ".join(f"{name} {count:,}" for name, count in over.items()))
    if found["loss"] is not None:
        parts = "  ".join(f"{name} {value:.6g}" for name, value in found["loss_parts"].items())
        say(f"loss {found['loss']:.6g}  ({parts})" if parts else f"loss {found['loss']:.6g}")
    for note in found["notes"]:
        say(f"note  {note}")


def _table(item: dict[str, Any]) -> Table:
    table = grid("", "turn", "token", "advantage", "weight", "ratio", "clipped", "loss")
    for at, turn in enumerate(item["turns"]):
        tokens = turn.get("tokens")
        if tokens is None:
            table.add_row(*cells(at, "", _number(turn.get("advantage")), "", "", "", ""))
            continue
        for index, token in enumerate(tokens):
            shown = ["observation"] if token.get("observation") else [_number(token["advantage"])]
            if not token.get("observation"):
                clipped = {None: "", True: "yes", False: "no"}[token["clipped"]]
                shown += [_number(token["weight"]), _number(token["ratio"]), clipped, _number(token["loss"])]
            shown += [""] * (5 - len(shown))
            table.add_row(*cells(at if index == 0 else "", index, *shown))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
