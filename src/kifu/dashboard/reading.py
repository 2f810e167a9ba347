"""What a report is made of, read from a run folder and nothing else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kifu.evaluation import Interval, wilson
from kifu.monitor import RunFacts, RunFolder, Tables, begun, read_metrics, read_protocol, reader_of
from kifu.records import PlanLine, Purpose, Trajectory, read_plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunView:
    """One run as it stands in its folder."""

    folder: RunFolder
    began: RunFacts
    facts: Mapping[str, Any]
    """Also what was noted later."""
    protocol: Tables
    """The six frozen layers."""
    metrics: Sequence[Mapping[str, Any]]
    plan: Sequence[PlanLine]
    trajectories: Mapping[str, Trajectory]
    """By id, in order of storage."""
    audit: Mapping[str, Any] | None
    """What the last ``kifu audit`` found; None when there was none."""

    @property
    def evaluations(self) -> list[tuple[int, str, Interval, int]]:
        """Version, split, success and number of tasks of every evaluation in the record, by version."""
        found: dict[tuple[int, str], list[bool]] = {}
        for item in self.trajectories.values():
            judged = item.verdict is not None and item.verdict.success is not None and not item.outcome.infra_error
            if item.key.purpose is Purpose.EVALUATION and judged:
                assert item.verdict is not None
                found.setdefault((item.key.step, item.task.split), []).append(bool(item.verdict.success))
        return [
            (version, split, wilson(sum(wins), len(wins)), len(wins))
            for (version, split), wins in sorted(found.items())
        ]


def read_run(root: Path | str) -> RunView:
    """Read a run folder; another process may be writing it.

    Raises:
        StorageError: no run there.
        AlteredError: records, plan or protocol differ from what was promised.
    """
    folder = RunFolder.open(Path(root))
    reader = reader_of(folder)
    return RunView(
        folder=folder,
        began=begun(folder),
        facts=folder.facts(),
        protocol=read_protocol(folder.protocol),
        metrics=read_metrics(folder.metrics) if folder.metrics.exists() else [],
        plan=read_plan(folder.root),
        trajectories={item.id: item for item in reader.trajectories()},
        audit=_audit(folder.root / "audit.json"),
    )


def _audit(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
