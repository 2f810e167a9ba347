"""How a run ended, for people and for programs."""

from kifu.cli.console import counted, document, percent, plain, say
from kifu.evaluation import EvaluationSummary
from kifu.records import Owner, StopReason
from kifu.training.run import Result


def show_result(result: Result, *, as_json: bool) -> None:
    """Print the end of a run: folder, steps, first and last evaluation."""
    if as_json:
        document(
            {
                "run": str(result.folder),
                "steps": result.steps,
                "version": result.version,
                "evaluations": [{**item.to_json(), "run": str(result.folder)} for item in result.evaluations],
            }
        )
        return
    first, last = result.evaluations[:1], result.evaluations[1:][-1:]
    names = ["before", "after"] if last or [item.checkpoint for item in first] == ["0"] else ["after"]
    for name, summary in zip(names, first + last, strict=False):
        unchanged = "  no update changed a weight" if name == "after" and summary.checkpoint == "0" else ""
        say(f"{name:<7} {success_line(summary)}{unchanged}")
        for warning in warnings(summary):
            say(warning)
    say(f"run     {result.folder}  {result.steps} steps, version {result.version}")
    say(f"next    kifu audit {result.folder} · kifu report {result.folder} · kifu show {result.folder}")


def warnings(summary: EvaluationSummary) -> list[str]:
    """What to say beside a figure: errors are left out of it, and cuts make it depend on a limit or the machine."""
    found, attempts = [], counted(summary.attempts, "attempt", "attempts")
    if summary.errors:
        found.append(
            f"warning {sum(summary.errors.values())} of {attempts} ended in an error ({plain(summary.errors)}) and are "
            "left out; kifu show tells why"
        )
    cut = {name: count for name, count in summary.stops.items() if StopReason(name).owner is Owner.COLLECTOR}
    if cut:
        found.append(
            f"warning {sum(cut.values())} of {attempts} were cut by the collector ({plain(cut)}) and count as their "
            "verdict at that moment says; raise environment.collector_limits, or policy.decoding.max_new_tokens where "
            "answers were cut"
        )
    return found


def success_line(summary: EvaluationSummary) -> str:
    """Success with its interval, and what it was measured on."""
    found = summary.success.to_json()
    interval = "" if found["mean"] is None else f" [{percent(found['low'])}, {percent(found['high'])}]"
    return (
        f"success {percent(found['mean'])}{interval}  ({summary.split}, {counted(summary.tasks, 'task', 'tasks')}, "
        f"{counted(summary.tries, 'try', 'tries')}, version {summary.checkpoint})"
    )
