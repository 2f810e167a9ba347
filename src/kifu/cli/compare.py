"""``kifu compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, percent, plain, say
from kifu.evaluation import Condition, Difference, Interval, RunComparison, compare_runs

app = Application()

_STAGES = ("generation", "tools", "environment", "waiting", "training")
_NOT_EQUAL = 1


@app.command()
@guarded
def compare(
    *,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN [RUN]", help="Run folders; the first is compared with.")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where conditions are not equal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs of methods, and name every condition in which they differ."""
    found = compare_runs(*runs)
    if as_json:
        document(found.to_json())
    else:
        _print(found)
    if strict and not found.equal_conditions:
        raise typer.Exit(_NOT_EQUAL)


def _print(found: RunComparison) -> None:
    for row in found.rows:
        say(f"{row.name}  {row.method}  seeds {plain(row.seeds)}  {plain(row.folders)}")
    method = [item for item in found.differences if item.condition is None]
    if found.equal_conditions:
        say(f"equal conditions: {', '.join(Condition)}")
    else:
        names = dict.fromkeys(str(item.condition) for item in found.unequal)
        say(
            f"NOT of equal conditions: {', '.join(names)}. What differs may explain a difference as well as the method."
        )
        _print_differences(found, found.unequal)
    if method:
        say("what the methods differ in")
        _print_differences(found, method)
    _print_success(found)
    _print_spent(found)


def _print_differences(found: RunComparison, differences: Sequence[Difference]) -> None:
    table = grid("", "condition", "field", *(row.name for row in found.rows))
    for item in differences:
        table.add_row(*cells(item.condition or "method", item.field, *map(plain, item.values)))
    output().print(table)


def _print_success(found: RunComparison) -> None:
    first = found.rows[0].name
    table = grid("", "success", "seeds", "before", "after", "after, by seed", f"minus {first}, by task", "p")
    for row in found.rows:
        by_seed = "  ".join(percent(after.to_json()["mean"]) for _, after in row.by_seed)
        paired = row.against_first
        told = (
            ("-", "-")
            if paired is None
            else (f"{_interval(paired.difference)} {paired.tasks} tasks", f"{paired.p_value:.3g}")
        )
        table.add_row(*cells(row.name, len(row.seeds), _interval(row.before), _interval(row.after), by_seed, *told))
    output().print(table)
    if any(row.against_first is not None for row in found.rows):
        say("the difference and p are of these trained policies, over tasks; they say nothing of another seed")


def _print_spent(found: RunComparison) -> None:
    used = grid("", "used by a run", "rollouts", "environment steps", "tokens", "CPU-seconds")
    both = grid("", "efficiency", "success per rollout", "rollouts/s", "tokens/s", *_STAGES)
    for row in found.rows:
        spent, rate = row.used, row.efficiency
        counts = (spent.rollouts, spent.environment_steps, spent.tokens)
        used.add_row(*cells(row.name, *(f"{count:,.0f}" for count in counts), f"{spent.cpu_seconds:.1f}"))
        rates = (rate.success_per_rollout, rate.rollouts_per_second, rate.tokens_per_second)
        both.add_row(*cells(row.name, *map(percent, rates), *(percent(rate.share.get(stage)) for stage in _STAGES)))
    output().print(used)
    output().print(both)
    machines = {machine for row in found.rows for machine in row.machines}
    if len(machines) > 1:
        say(f"warning times of different machines do not compare: {plain(sorted(machines))}")


def _interval(found: Interval | None) -> str:
    return "-" if found is None else f"{percent(found.mean)} [{percent(found.low)}, {percent(found.high)}]"
