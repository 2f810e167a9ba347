"""``kifu check-gateway``."""

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, say
from kifu.errors import UsageError
from kifu.testing.capture import check_capture
from kifu.testing.capture_contract import CaptureSubject, Met
from kifu.testing.capture_kifu import KifuGateway

app = Application()


@app.command()
@guarded
def check_gateway(
    *,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="GATEWAY", help="kifu, or module:Class or file.py:Class; the class is called with an empty folder."
        ),
    ],
    case: Annotated[list[str] | None, typer.Option(help="Run cases that begin so; may be repeated.")] = None,
    model_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where the fake model listens; 0 takes a free port.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Ask any capture gateway 52 things over HTTP, in front of a fake model; exit 1 when it fails one it claims."""
    make = _maker(subject)
    with tempfile.TemporaryDirectory() as folder:
        report = check_capture(make(Path(folder) / "records"), cases=case or (), model_port=model_port)
    if as_json:
        document({"subject": report.subject, "results": [asdict(result) for result in report.results]})
    else:
        table = grid("", "case", "what was seen")
        for result in report.results:
            table.add_row(*cells(result.met, result.case, result.reason))
        output().print(table)
        say(f"{report.subject}: " + ", ".join(f"{report.count(met)} {met}" for met in Met))
    if any(not result.claimed for result in report.failures):
        raise typer.Exit(1)


def _maker(name: str) -> Callable[[Path], CaptureSubject]:
    if name == "kifu":
        return KifuGateway
    where, _, attribute = name.rpartition(":")
    if not where:
        raise UsageError(f"{name!r}: expected kifu, module:Class or file.py:Class")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module.__name__] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        found: Callable[[Path], CaptureSubject] = getattr(module, attribute)
    except (ImportError, OSError, AttributeError) as cause:
        raise UsageError(f"{name!r} cannot be loaded: {cause}") from cause
    return found
