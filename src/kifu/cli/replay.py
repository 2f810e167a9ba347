"""``kifu replay``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.cli.progress import counting
from kifu.training.inspection.replay import replay_run

app = Application()


@app.command()
@guarded
def replay(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    trajectory: Annotated[
        str | None, typer.Argument(metavar="TRAJECTORY", help="Id of one record; all of them by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute recorded actions again and compare prompts, observations, rewards, digests and verdicts."""
    with counting("replaying", unit="records") as told:
        found = replay_run(run, trajectory, progress=lambda done: told(done, 0))
    differing = {name: list(item.differences) for name, item in found.items() if item.differences}
    impossible = {name: item.why_not for name, item in found.items() if item.why_not is not None}
    if as_json:
        document(
            {
                "run": str(run),
                "replayed": len(found) - len(impossible),
                "equal": len(found) - len(impossible) - len(differing),
                "differences": [{"trajectory": name, "what": what} for name, what in differing.items()],
                "not_replayable": [{"trajectory": name, "why": why} for name, why in impossible.items()],
            }
        )
    else:
        say(f"replayed {len(found) - len(impossible):,} of {len(found):,}  differing {len(differing):,}")
        for name, what in list(differing.items())[:20]:
            say(f"{name}: " + "; ".join(what))
        for name, why in list(impossible.items())[:20]:
            say(f"{name}: cannot be replayed: {why}")
    if differing:
        raise typer.Exit(1)
