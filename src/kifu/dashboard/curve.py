"""The learning curve of a run: success of training rollouts with its interval, and evaluations as points."""

from pathlib import Path

from kifu.dashboard.reading import RunView, read_run
from kifu.dashboard.svg import Frame, Series, line_chart, standalone
from kifu.evaluation import wilson


def learning_curve(root: Path | str) -> str:
    """The learning curve of a run folder as one SVG file that adapts to light and dark."""
    return standalone(curve(read_run(root)))


def curve(run: RunView) -> str:
    """The learning curve, styled by the page it stands in."""
    rows = [row for row in run.metrics if row.get("success") is not None]
    bands = [_band(row["success"], int(row.get("rollouts") or 1)) for row in rows]
    trained = Series(
        name="training rollouts",
        xs=[row["step"] for row in rows],
        ys=[row["success"] for row in rows],
        lows=[low for low, _ in bands],
        highs=[high for _, high in bands],
    )
    found, taken = run.evaluations, _taken(run)
    evaluated = Series(
        name="evaluations",
        xs=[taken.get(version, len(run.metrics)) for version, _, _, _ in found],
        ys=[interval.mean for _, _, interval, _ in found],
        lows=[interval.low for _, _, interval, _ in found],
        highs=[interval.high for _, _, interval, _ in found],
        color="var(--point)",
        dots=True,
    )
    return line_chart([trained, evaluated], Frame(y_label="success"), title=f"learning curve of {run.began.name}")


def _taken(run: RunView) -> dict[int, int]:
    """Before which step a version was evaluated; the last evaluation comes after all steps and is in no row."""
    return {int(row["evaluation/version"]): int(row["step"]) for row in run.metrics if "evaluation/version" in row}


def _band(mean: float, count: int) -> tuple[float, float]:
    interval = wilson(mean * count, count)
    return interval.low, interval.high
