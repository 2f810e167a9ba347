"""``kifu report``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.dashboard import write_report

app = Application()


@app.command()
@guarded
def report(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; it may be written meanwhile.")],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html by default.")] = None,
    transcripts: Annotated[int, typer.Option(min=0, help="How many transcripts to put in.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained HTML page about a run; it opens from the disk and loads nothing."""
    path = write_report(run, out=out, transcripts=transcripts)
    if as_json:
        document({"run": str(run), "report": str(path), "bytes": path.stat().st_size})
    else:
        say(f"report  {path}")
