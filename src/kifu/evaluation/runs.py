"""Runs of methods side by side: where their conditions differ, what they learned, what it took.

Runs with one protocol and different seeds form one row. Everything is read from the run folders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from kifu.errors import AlteredError, UsageError
from kifu.evaluation.compare import Comparison, compare
from kifu.evaluation.conditions import Condition, Difference, difference, protocol_differences
from kifu.evaluation.efficiency import Efficiency
from kifu.evaluation.intervals import Interval, clustered_wilson, interval_json
from kifu.evaluation.judged import judged_success
from kifu.evaluation.summary import Success
from kifu.monitor import (
    RunFolder,
    Tables,
    begun,
    collection_s,
    protocol_problem,
    read_metrics,
    read_protocol,
    reader_of,
    time_shares,
)
from kifu.records import Purpose, Trajectory

_MACHINE = ("cpu", "cores", "threads", "device")
"""What of a run's machine its times depend on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedRun:
    """What a comparison reads of one run."""

    folder: str
    seed: int
    protocol_hash: str
    protocol: Tables
    training: Sequence[Trajectory]
    before: Sequence[Trajectory]
    """Its first evaluation."""
    after: Sequence[Trajectory]
    """Its last one."""
    metrics: Sequence[dict[str, Any]]
    machine: str
    """Its processor and the threads that were used."""

    @classmethod
    def read(cls, root: Path | str) -> "FinishedRun":
        """Read a run folder.

        Raises:
            StorageError: no run there, or one that `kifu gateway` recorded.
            FormatError: written by a newer kifu.
            AlteredError: protocol or records differ from what was promised.
            UsageError: the run has not finished, or holds no evaluation.
        """
        folder = RunFolder.open(Path(root))
        began, status = begun(folder), folder.facts().get("status")
        if status != "finished":
            raise UsageError(
                f"{root}: the run's status is `{status}`, expected `finished`: half a run has used half its budget. "
                f"Wait for it, or go on with it by `kifu resume {root}`."
            )
        problem = protocol_problem(folder)
        protocol = read_protocol(folder.protocol)
        if problem is not None or not protocol:
            raise AlteredError(problem or f"{folder.protocol}: missing, and nothing else says how the run was made")
        training, evaluations = list[Trajectory](), dict[int, list[Trajectory]]()
        for item in reader_of(folder).trajectories():
            if item.key.purpose is Purpose.TRAIN:
                training.append(item)
            elif item.key.purpose is Purpose.EVALUATION:
                evaluations.setdefault(item.key.step, []).append(item)
        if not evaluations:
            raise UsageError(f"{root}: the run holds no evaluation, so there is no success to compare")
        return cls(
            folder=str(root),
            seed=began.seed,
            protocol_hash=began.protocol,
            protocol=protocol,
            training=training,
            before=evaluations[min(evaluations)],
            after=evaluations[max(evaluations)],
            metrics=read_metrics(folder.metrics) if folder.metrics.exists() else [],
            machine=", ".join(f"{name} {began.machine.get(name, 'unknown')}" for name in _MACHINE),
        )

    @property
    def method(self) -> str:
        """Id of the method, or of the method of every stage."""
        stages = self.protocol["update"].get("stages") or [{"method": self.protocol["credit"]["algorithm"]}]
        return " → ".join(stage["method"] for stage in stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the training of a row's runs used, per run."""

    rollouts: float
    environment_steps: float
    """Turns; a branch has only those it did not take over."""
    tokens: float
    """Sampled by the policy."""
    cpu_seconds: float
    """Of all steps, evaluations between them included."""

    @classmethod
    def of(cls, runs: Sequence[FinishedRun]) -> "Used":
        """Means over runs."""
        training = [item for run in runs for item in run.training]
        return cls(
            rollouts=len(training) / len(runs),
            environment_steps=sum(map(_own_turns, training)) / len(runs),
            tokens=sum(item.sampled_tokens for item in training) / len(runs),
            cpu_seconds=sum(row["cpu_seconds"] for run in runs for row in run.metrics) / len(runs),
        )

    def to_json(self) -> dict[str, float]:
        """Field by field."""
        return {
            "rollouts": self.rollouts,
            "environment_steps": self.environment_steps,
            "tokens": self.tokens,
            "cpu_seconds": self.cpu_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Runs with one protocol."""

    name: str
    """A letter."""
    method: str
    protocol_hash: str
    folders: tuple[str, ...]
    seeds: tuple[int, ...]
    before: Interval | None
    """None where no try was judged, as below."""
    after: Interval | None
    by_seed: tuple[tuple[Success, Success], ...]
    """Before and after of every run, with its own interval."""
    machines: tuple[str, ...]
    """On which its times were measured; CPU-seconds and rates of different ones do not compare."""
    used: Used
    efficiency: Efficiency
    """Of training; seconds are those in which rollouts were collected."""
    against_first: Comparison | None
    """Success after training minus that of the first row, paired by task; None for the first row and without a common
    task."""

    def to_json(self) -> dict[str, Any]:
        """Field by field."""
        return {
            "row": self.name,
            "method": self.method,
            "protocol": self.protocol_hash,
            "runs": list(self.folders),
            "seeds": list(self.seeds),
            "before": interval_json(self.before),
            "after": interval_json(self.after),
            "by_seed": [
                {"seed": seed, "before": before.to_json(), "after": after.to_json()}
                for seed, (before, after) in zip(self.seeds, self.by_seed, strict=True)
            ],
            "machines": list(self.machines),
            "used": self.used.to_json(),
            "efficiency": self.efficiency.to_json(),
            "against_first": None if self.against_first is None else self.against_first.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Rows in the order in which their first run was named, and every field in which they differ."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]

    @property
    def unequal(self) -> tuple[Difference, ...]:
        """Differences in conditions: what else than the method may explain a difference in success."""
        return tuple(found for found in self.differences if found.condition is not None)

    @property
    def equal_conditions(self) -> bool:
        """Whether the rows differ in nothing but the method."""
        return not self.unequal

    def to_json(self) -> dict[str, Any]:
        """The document of ``kifu compare --json``."""
        names = [row.name for row in self.rows]
        return {
            "equal_conditions": self.equal_conditions,
            "differences": [
                {
                    "condition": None if found.condition is None else found.condition.value,
                    "field": found.field,
                    "values": dict(zip(names, found.values, strict=True)),
                }
                for found in self.differences
            ],
            "rows": [row.to_json() for row in self.rows],
        }


def compare_runs(*roots: Path | str) -> RunComparison:
    """Compare finished runs of methods.

    Args:
        roots: run folders, two or more; runs with one protocol and different seeds are one row.

    Raises:
        UsageError: fewer than two runs, one named twice, two with one protocol and one seed, or one that has not
            finished.
        StorageError: a folder is no run.
        AlteredError: a run differs from what was promised.
    """
    if len(roots) < 2:
        raise UsageError(f"found {len(roots)} run, expected two or more to compare; `kifu report` describes one")
    runs = [FinishedRun.read(root) for root in roots]
    for one, other in combinations(runs, 2):
        if (one.protocol_hash, one.seed) == (other.protocol_hash, other.seed):
            raise UsageError(
                f"{one.folder} and {other.folder}: one protocol and one seed, {one.seed}, so the second adds nothing; "
                "leave it out, or train with another --seed"
            )
    return compared(runs)


def compared(runs: Sequence[FinishedRun]) -> RunComparison:
    """Compare runs that were read."""
    alike: dict[str, list[FinishedRun]] = {}
    for run in runs:
        alike.setdefault(run.protocol_hash, []).append(run)
    sides = list(alike.values())
    rows = tuple(_row(chr(ord("A") + at), side, first=sides[0]) for at, side in enumerate(sides))
    return RunComparison(
        rows=rows,
        differences=(
            *protocol_differences([side[0].protocol for side in sides]),
            *difference(Condition.VERIFIER, "verifier", [_verifiers(side) for side in sides]),
            *difference(Condition.BUDGET, "rollouts used by a run", [row.used.rollouts for row in rows]),
        ),
    )


def success_over_runs(evaluations: Sequence[Sequence[Trajectory]]) -> Interval | None:
    """Success over the evaluations of several runs; None where no try was judged.

    Tries under one run's weights share that run's luck, so runs are the clusters of `clustered_wilson` where there are
    two; of a single one the interval is that of its summary, whose clusters are tasks.
    """
    judged = [
        found for one in evaluations if (found := [won for item in one if (won := judged_success(item)) is not None])
    ]
    if len(judged) < 2:
        return Success.of([item for one in evaluations for item in one]).interval
    return clustered_wilson(np.array([sum(found) for found in judged]), np.array([len(found) for found in judged]))


def _row(name: str, side: Sequence[FinishedRun], *, first: Sequence[FinishedRun]) -> Row:
    metrics = [line for run in side for line in run.metrics]
    return Row(
        name=name,
        method=side[0].method,
        protocol_hash=side[0].protocol_hash,
        folders=tuple(run.folder for run in side),
        seeds=tuple(run.seed for run in side),
        before=success_over_runs([run.before for run in side]),
        after=success_over_runs([run.after for run in side]),
        by_seed=tuple((Success.of(run.before), Success.of(run.after)) for run in side),
        machines=tuple(sorted({run.machine for run in side})),
        used=Used.of(side),
        efficiency=Efficiency.of(
            [item for run in side for item in run.training], seconds=collection_s(metrics), share=time_shares(metrics)
        ),
        against_first=None if side is first else _paired(first, side),
    )


def _paired(first: Sequence[FinishedRun], second: Sequence[FinishedRun]) -> Comparison | None:
    """The difference by task, tries of all runs of a side together; None where there is no common task."""
    if any(found.other_tasks for found in protocol_differences([first[0].protocol, second[0].protocol])):
        return None
    sides = [
        [item for run in side for item in run.after if judged_success(item) is not None] for side in (first, second)
    ]
    if not {item.task.id for item in sides[0]} & {item.task.id for item in sides[1]}:
        return None
    return compare(*sides)


def _verifiers(side: Sequence[FinishedRun]) -> list[str]:
    return sorted({item.verdict.verifier for run in side for item in run.after if item.verdict is not None})


def _own_turns(item: Trajectory) -> int:
    return len(item.turns) - (0 if item.branch is None else item.branch.turn)
