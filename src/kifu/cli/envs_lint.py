"""``kifu envs lint``."""

from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, percent, say
from kifu.envs.linting import lint_task
from kifu.verify.linting import LintReport, Tried

app = Application()


@app.command()
@guarded
def lint(
    *,
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="code_repair/PACKAGE-SEED-1, a task folder of Harbor, or SHEET.toml#INSTANCE."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Try known cheats and honest work on a task; exit 1 when its judge pays what it should hold or refuses work."""
    found = lint_task(task)
    if as_json:
        document(found.to_json())
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(1)


def _print(found: LintReport) -> None:
    table = grid("", "attempt", "judged")
    for item in found.tried:
        table.add_row(*cells(item.name, _judged(item)))
    output().print(table)
    held = len(found.cheats) - len(found.accepted)
    say(
        f"{found.task}: resists {held} of {len(found.cheats)} cheats ({percent(found.resistance)}), assurance "
        f"{found.assurance}, verifier {found.verifier}"
    )
    say(f"paid: {', '.join(found.accepted) or 'none'}")
    accepted = sum(item.accepted for item in found.controls)
    say(f"honest controls accepted: {accepted} of {len(found.controls)}")
    for problem in found.problems:
        say(f"problem: {problem}")


def _judged(item: Tried) -> str:
    if item.problem:
        return f"the judge failed: {item.problem[:100]}"
    if item.is_honest:
        return "accepted" if item.accepted else "refused, and it is honest"
    return "PAID" if item.accepted else "not paid"
