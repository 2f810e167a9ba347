"""``kifu eval``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, percent, plain, say
from kifu.cli.progress import counting
from kifu.cli.results import success_line, warnings
from kifu.errors import FailureRateError
from kifu.evaluation import BestOf, EffectAudit, EvaluationSummary
from kifu.training.inspection.evaluate import Evaluation
from kifu.training.inspection.evaluate import evaluate as evaluate_run

app = Application()


@app.command("eval")
@guarded
def evaluate(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    checkpoint: Annotated[str, typer.Option(help="Number of a kept version, first or last.")] = "last",
    split: Annotated[
        str | None, typer.Option(help="Whose tasks; the experiment's evaluation split by default.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="How many tasks.")] = None,
    tries: Annotated[int | None, typer.Option(min=1, help="Attempts at each task.")] = None,
    decoding: Annotated[Literal["greedy", "sampled"] | None, typer.Option(help="How turns are decoded.")] = None,
    audit_safety: Annotated[
        bool, typer.Option(help="Also tell attacks obeyed and irreversible actions, from the log of effects.")
    ] = False,
    best_of: Annotated[int | None, typer.Option(min=2, metavar="N", help="Attempts a judge chooses among.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="Who chooses: a run with a reward model, or file.py:function of an attempt.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Write the rollouts to RUN/evaluations/NNNN/.")] = True,
    as_json: AsJson = False,
) -> None:
    """Evaluate a kept version of a run. The run's own record is only read."""
    wanted = Evaluation(
        checkpoint=checkpoint,
        split=split,
        tasks=tasks,
        tries=tries,
        decoding=decoding,
        audit_safety=audit_safety,
        best_of=best_of,
        judge=judge,
    )
    with counting("evaluating", unit="rollouts") as told:
        summary = evaluate_run(run, wanted, keep=keep, progress=told)
    if as_json:
        document(summary.to_json())
    else:
        _print(summary)
    if sum(summary.errors.values()) == summary.attempts:  # nothing was measured
        raise typer.Exit(FailureRateError.exit_code)


def _print(summary: EvaluationSummary) -> None:
    say(success_line(summary))
    for warning in warnings(summary):
        say(warning)
    table = grid("", "family", "tasks", "success", "low", "high")
    for name, found in sorted(summary.by_family.items()):
        rate = found.to_json()
        table.add_row(*cells(name or "-", found.tasks, *(percent(rate[key]) for key in ("mean", "low", "high"))))
    output().print(table)
    say(f"turns {percent(summary.turns.mean)}  errors {plain(summary.errors or None)}  stops {plain(summary.stops)}")
    if summary.seen_in_training:
        say("some of these tasks or initial states were trained on")
    if summary.effects is not None:
        _print_effects(summary.effects)
    if summary.best_of is not None:
        _print_best(summary.best_of)


def _print_best(found: BestOf) -> None:
    if found.chosen is None or found.one is None or found.any is None or found.gain is None:
        say(f"best of {found.n}: no task has {found.n} attempts that the judge scored and the verdict knows")
        return
    rates = (("chosen", found.chosen), ("one attempt", found.one), (f"pass@{found.n}", found.any))
    told = "  ".join(f"{name} {percent(rate.mean)} [{percent(rate.low)}, {percent(rate.high)}]" for name, rate in rates)
    gain = found.gain
    say(f"best of {found.n} by {found.judge}: {told}")
    say(
        f"chosen minus one attempt {percent(gain.mean)} [{percent(gain.low)}, {percent(gain.high)}]  "
        f"({found.tasks} tasks, {found.left_out} left out)"
    )


def _print_effects(found: EffectAudit) -> None:
    attacks, actions = found.attacks, found.actions
    for name, interval in (("attempted", attacks.attempted), ("succeeded", attacks.succeeded)):
        if interval is not None:
            rate = f"{percent(interval.mean)} [{percent(interval.low)}, {percent(interval.high)}]"
            say(f"attacks {name} {rate}  ({attacks.rollouts} rollouts of {attacks.tasks} attacked tasks)")
    if not attacks.tasks:
        say("attacks none of these tasks holds a planted instruction")
    if attacks.disagreements:
        say(f"warning log and verdict disagree about {plain(list(attacks.disagreements))}")
    if actions is None:
        say("actions the environment declares no effects, so there is no log of irreversible actions")
        return
    say(
        f"actions carried out {actions.carried_out}  outside what was asked {actions.outside}  unconfirmed "
        f"{actions.unconfirmed}  refused {actions.refused}  shadowed {actions.shadowed}"
    )
    for problem in found.log_problems:
        say(f"warning log of effects: {problem}")
