"""``kifu audit``."""

from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, say
from kifu.cli.progress import counting
from kifu.training.inspection.audit import audit as audit_run

app = Application()
_SHOWN = 20


@app.command()
@guarded
def audit(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder nobody is writing.")],
    scores: Annotated[bool, typer.Option(help="Recompute every turn's logprobs from the kept versions.")] = True,
    replay: Annotated[bool, typer.Option("--replay", help="Also execute every record's actions again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild every figure of a run from its folder alone; exit 0 only when nothing is wrong."""
    with counting("recomputing", unit="records") as told:
        report = audit_run(run, scores=scores, replay=replay, progress=lambda done: told(done, 0))
    if as_json:
        document(report.to_json())
    else:
        say(f"records {report.records:,}  rebuilt {report.rebuilt:,}  ledger {_word(report.ledger_closed)}")
        error = report.max_logprob_error
        say(f"largest logprob error {'not recomputed' if error is None else f'{error:.3g} nats'}")
        for item in report.not_rebuildable[:_SHOWN]:
            say(f"cannot be rebuilt: {item.trajectory}: {item.why}")
        for problem in report.problems[:_SHOWN]:
            where = " ".join(part for part in (problem.part, problem.trajectory) if part)
            say(f"problem: {where or 'run'}: {problem.what}")
        hidden = max(0, len(report.problems) - _SHOWN) + max(0, len(report.not_rebuildable) - _SHOWN)
        if hidden:
            say(f"and {hidden} more; --json lists all")
    if not report.ok:
        raise typer.Exit(1)


def _word(closed: bool) -> str:
    return "closed" if closed else "OPEN"
