"""How a run ended, for people and for programs."""

from kifu.cli.console import counted, document, percent, say
from kifu.evaluation import EvaluationSummary
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
    for summary in result.evaluations[:1] + result.evaluations[1:][-1:]:
        say(f"{'before' if summary.checkpoint == '0' else 'after':<7} {success_line(summary)}")
    say(f"run     {result.folder}  {result.steps} steps, version {result.version}")
    say(f"next    kifu audit {result.folder} · kifu report {result.folder} · kifu show {result.folder}")


def success_line(summary: EvaluationSummary) -> str:
    """Success with its interval, and what it was measured on."""
    found = summary.success.to_json()
    interval = "" if found["mean"] is None else f" [{percent(found['low'])}, {percent(found['high'])}]"
    return (
        f"success {percent(found['mean'])}{interval}  ({summary.split}, {counted(summary.tasks, 'task', 'tasks')}, "
        f"{counted(summary.tries, 'try', 'tries')}, version {summary.checkpoint})"
    )
