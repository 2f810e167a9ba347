"""``kifu resume``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, guarded
from kifu.cli.results import show_result
from kifu.training.run import resume as resume_run

app = Application()


@app.command()
@guarded
def resume(
    *, run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")], as_json: AsJson = False
) -> None:
    """Go on with a run that stopped or was killed; what was accepted is not sampled again."""
    show_result(resume_run(run), as_json=as_json)
