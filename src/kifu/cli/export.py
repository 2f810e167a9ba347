"""``kifu export``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.dashboard import decoder_of
from kifu.monitor import RunFolder
from kifu.training.inspection.export import export_atif, export_hf, export_messages

app = Application()


@app.command()
@guarded
def export(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder (hf, atif) or file (messages) to write.")],
    to: Annotated[Literal["hf", "atif", "messages"], typer.Option(help="Weights for transformers, or records.")],
    checkpoint: Annotated[str, typer.Option(help="Version to export with hf: a number, first or last.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Write a run's weights for transformers, or its records as ATIF documents or chat messages."""
    if to == "hf":
        export_hf(run, target, checkpoint=checkpoint)
        _done({"run": str(run), "to": to, "target": str(target)}, f"model  {target}", as_json=as_json)
        return
    decode, why = decoder_of(RunFolder.open(run))
    write = export_atif if to == "atif" else export_messages
    count = write(run, target, decode=decode)
    found = {"run": str(run), "to": to, "target": str(target), "records": count, "note": why}
    _done(found, f"records  {count:,}  in {target}" + ("" if why is None else f"\n{why}"), as_json=as_json)


def _done(found: dict[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        document(found)
    else:
        say(text)
