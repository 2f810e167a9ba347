"""Auditing a run from its folder alone: are the bytes as promised, the figures rebuilt, the books closed?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kifu.errors import KifuError, StorageError
from kifu.records.blobs import BlobStore
from kifu.records.branches import branch_problems
from kifu.records.chain import read_chain
from kifu.records.checks import placed_spans, rebuild_check
from kifu.records.parts import MANIFEST, Part, read_part
from kifu.records.plan import PLAN, PlanLine, read_plan
from kifu.records.planned import check_plan
from kifu.records.reader import STORED, Problem
from kifu.records.rows import Row, from_row
from kifu.records.tokens import Floats, Origin
from kifu.records.trajectory import Trajectory
from kifu.records.wal import read_wal, wal_files
from kifu.records.weights import VERSIONS, WeightStore

Score: TypeAlias = Callable[[Sequence[Trajectory]], Sequence[Sequence[Floats | None]]]
"""Recomputes logprobs: per trajectory one array per policy span (tape by tape), None where its weights are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The latest estimate of one name on one turn, computed again under the version that stands beside it."""

    turn: int
    name: str
    value: float | None = None
    why_not: str | None = None
    """Why it could not be computed."""


AskAgain: TypeAlias = Callable[[Sequence[Trajectory]], Sequence[Sequence[Recomputed]]]
"""Recomputes what a model told of the turns: per trajectory one value per turn and name that can be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of executing a record's actions again."""

    differences: tuple[str, ...] = ()
    """Observations, rewards or digests that differ from the record."""
    why_not: str | None = None
    """Why it could not be done, e.g. an environment that is not deterministic."""


Replay: TypeAlias = Callable[[Trajectory], Replayed]
"""Executes a record's actions again in a fresh environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrebuilt:
    """A record that does not determine its own figures."""

    trajectory: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit found."""

    records: int
    rebuilt: int
    """Records whose figures were rebuilt without a difference."""
    not_rebuildable: tuple[Unrebuilt, ...] = ()
    problems: tuple[Problem, ...] = ()
    ledger_closed: bool = True
    """False also where a problem keeps the books from being read."""
    max_logprob_error: float | None = None
    """Largest difference between a recorded and a recomputed logprob, nats; None when nothing was recomputed."""

    @property
    def ok(self) -> bool:
        """No problems, and the books close."""
        return not self.problems and self.ledger_closed

    def to_json(self) -> dict[str, Any]:
        """The shape of ``kifu audit --json``."""
        return {
            "records": self.records,
            "rebuilt": self.rebuilt,
            "not_rebuildable": [{"trajectory": item.trajectory, "why": item.why} for item in self.not_rebuildable],
            "problems": [
                {"part": item.part, "trajectory": item.trajectory, "what": item.what} for item in self.problems
            ],
            "ledger_closed": self.ledger_closed,
            "max_logprob_error": self.max_logprob_error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Digests noted outside the files they name, in ``run.json`` or a checkpoint; None is not compared."""

    manifest: str | None = None
    plan: str | None = None
    versions: str | None = None


@dataclass(slots=True, kw_only=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    unrebuilt: list[Unrebuilt] = field(default_factory=list)
    kept: dict[str, Trajectory] = field(default_factory=dict)
    stored: dict[str, Trajectory] = field(default_factory=dict)
    """Records of other runs that this one learned from."""
    max_logprob_error: float | None = None

    def problem(self, what: str, *, part: str | None = None, trajectory: str | None = None) -> None:
        self.problems.append(Problem(what=what, part=part, trajectory=trajectory))


def audit_run(
    folder: str | Path,
    *,
    plan: Sequence[PlanLine] | None = None,
    heads: Heads | None = None,
    score: Score | None = None,
    estimate: AskAgain | None = None,
    logprob_tolerance: float = 1e-4,
    replay: Replay | None = None,
) -> AuditReport:
    """Audit the folder of a run that nobody is writing.

    Args:
        folder: the run folder.
        plan: its plan; read from ``plan.jsonl`` by default.
        heads: digests noted outside; without them a cut tail cannot be seen.
        score: recomputes logprobs from the kept weights.
        estimate: recomputes what a model told of turns, from the kept weights.
        logprob_tolerance: nats a recomputed logprob may differ; estimates as much in their own unit.
        replay: executes records again.
    """
    folder, heads, found = Path(folder), heads or Heads(), _Findings()
    blobs = BlobStore(folder / "blobs")
    versions = _check_weights(folder, heads, found)
    for part, rows in _verified(folder, heads, found):
        records = _records(rows, part, found)
        for trajectory in records:
            found.kept[trajectory.id] = trajectory
            _rebuild(trajectory, versions=versions, blobs=blobs, found=found)
        if score is not None:
            _compare_logprobs(records, part, score=score, tolerance=logprob_tolerance, found=found)
        if estimate is not None:
            _compare_estimates(records, part, estimate=estimate, tolerance=logprob_tolerance, found=found)
        if replay is not None:
            _replay(records, part, replay=replay, found=found)
    for source in sorted((folder / STORED).glob("*/records")):
        _read_stored(folder, source, found)
    for trajectory in found.kept.values():
        for what in branch_problems(trajectory, {**found.stored, **found.kept}):
            found.problem(what, trajectory=trajectory.id)
    closed = _check_books(folder, plan, heads=heads, found=found)
    failed = {item.trajectory for item in found.unrebuilt} | {item.trajectory for item in found.problems}
    return AuditReport(
        records=len(found.kept),
        rebuilt=sum(name not in failed for name in found.kept),
        not_rebuildable=tuple(found.unrebuilt),
        problems=tuple(found.problems),
        ledger_closed=closed,
        max_logprob_error=found.max_logprob_error,
    )


def _verified(folder: Path, heads: Heads, found: _Findings) -> Iterator[tuple[str, list[Row]]]:
    """Parts in the order of the manifest, then the log, as far as their bytes are those promised."""
    records = folder / "records"
    sealed: set[str] = set()
    parts = _manifest(records, heads, found)
    for part in parts or ():
        try:
            rows = read_part(records, part)
        except StorageError as error:
            found.problem(str(error), part=f"records/{part.part}")
            continue
        sealed |= {row["trajectory_id"] for row in rows}
        yield f"records/{part.part}", rows
    if parts is not None:
        for name in sorted({path.name for path in records.glob("part-*.parquet")} - {part.part for part in parts}):
            found.problem("the manifest does not list this part", part=f"records/{name}")
    for path in wal_files(folder / "wal"):
        try:
            frames = read_wal(path).frames
        except StorageError as error:
            found.problem(str(error), part=f"wal/{path.name}")
            continue
        fresh = {frame.id: frame.body for frame in frames if frame.kind == "trajectory" and frame.id not in sealed}
        sealed |= set(fresh)
        yield f"wal/{path.name}", list(fresh.values())


def _manifest(records: Path, heads: Heads, found: _Findings) -> list[Part] | None:
    """The parts the manifest promises; None when it cannot be trusted. A cut tail is a problem, the rest is read."""
    path, name = records / MANIFEST, f"records/{MANIFEST}"
    try:
        chain = read_chain(path)
        parts = [Part.of(line, where=f"{path}, line {at}") for at, line in enumerate(chain.lines, start=1)]
    except StorageError as error:
        found.problem(str(error), part=name)
        return None
    try:
        read_chain(path, expected_head=heads.manifest)
    except StorageError as error:
        found.problem(str(error), part=name)
    return parts


def _read_stored(folder: Path, source: Path, found: _Findings) -> None:
    """Records copied from another run: their bytes are checked, their figures were that run's to rebuild."""
    where = source.relative_to(folder)
    try:
        chain = read_chain(source / MANIFEST)
        parts = [Part.of(line, where=f"{where}/{MANIFEST}, line {at}") for at, line in enumerate(chain.lines, start=1)]
        for part in parts:
            found.stored |= {item.id: item for item in map(from_row, read_part(source, part))}
    except KifuError as error:
        found.problem(str(error), part=str(where))


def _records(rows: Sequence[Row], part: str, found: _Findings) -> list[Trajectory]:
    records = []
    for row in rows:
        try:
            trajectory = from_row(row)
        except KifuError as error:
            found.problem(str(error), part=part, trajectory=row.get("trajectory_id"))
            continue
        if trajectory.id in found.kept:
            found.problem("recorded twice", part=part, trajectory=trajectory.id)
            continue
        records.append(trajectory)
    return records


def _rebuild(trajectory: Trajectory, *, versions: set[int] | None, blobs: BlobStore, found: _Findings) -> None:
    whys = rebuild_check(trajectory, blobs=blobs)
    used = {placed.span.policy_version for placed in placed_spans(trajectory, origin=Origin.POLICY)}
    if versions is not None:
        whys += [
            f"the weights of version {version} are not kept" for version in sorted(used - versions - {None}, key=str)
        ]
    found.unrebuilt += [Unrebuilt(trajectory=trajectory.id, why=why) for why in whys]


def _check_weights(folder: Path, heads: Heads, found: _Findings) -> set[int] | None:
    """The versions kept, None when the run keeps none; altered files are problems."""
    path = folder / "weights" / VERSIONS
    if not path.exists() and heads.versions is None:
        return None
    try:
        store = WeightStore(folder / "weights", expected_head=heads.versions, read_only=True)
    except StorageError as error:
        found.problem(str(error), part=f"weights/{VERSIONS}")
        return None
    for name in store.altered():
        found.problem("the file is missing or its bytes are not those promised", part=f"weights/{name}")
    return {version.version for version in store.versions}


def _compare_logprobs(
    records: Sequence[Trajectory], part: str, *, score: Score, tolerance: float, found: _Findings
) -> None:
    for trajectory, answers in zip(records, score(records), strict=True):
        errors = []
        for placed, recomputed in zip(placed_spans(trajectory, origin=Origin.POLICY), answers, strict=True):
            if recomputed is None:
                why = f"logprobs of version {placed.span.policy_version} cannot be recomputed"
                found.unrebuilt.append(Unrebuilt(trajectory=trajectory.id, why=why))
                continue
            assert placed.span.logprobs is not None
            error = float(np.abs(recomputed - placed.span.logprobs).max())
            errors.append((inf if isnan(error) else error, placed))
        if not errors:
            continue
        worst, placed = max(errors, key=lambda item: item[0])
        if worst < inf:
            found.max_logprob_error = max(worst, found.max_logprob_error or 0.0)
        if not worst <= tolerance:
            found.problem(
                f"turn {placed.span.turn}: a logprob differs by {worst:.3g} nats from the recorded one, "
                f"more than {tolerance:.3g}",
                part=part,
                trajectory=trajectory.id,
            )


def _compare_estimates(
    records: Sequence[Trajectory], part: str, *, estimate: AskAgain, tolerance: float, found: _Findings
) -> None:
    for trajectory, answers in zip(records, estimate(records), strict=True):
        whys = dict.fromkeys(answer.why_not for answer in answers if answer.why_not is not None)
        found.unrebuilt += [Unrebuilt(trajectory=trajectory.id, why=why) for why in whys]
        for answer in answers:
            if answer.value is None:
                continue
            turn = trajectory.turns[answer.turn]
            recorded = turn.estimate(answer.name)
            if recorded is None or not abs(recorded - answer.value) <= tolerance:
                version = next(
                    (one.policy_version for one in reversed(turn.estimates) if one.name == answer.name), None
                )
                found.problem(
                    f"turn {answer.turn}: `{answer.name}` is recorded as {recorded}, the weights of version {version} "
                    f"give {answer.value:.6g}",
                    part=part,
                    trajectory=trajectory.id,
                )


def _replay(records: Sequence[Trajectory], part: str, *, replay: Replay, found: _Findings) -> None:
    for trajectory in records:
        replayed = replay(trajectory)
        if replayed.why_not is not None:
            found.unrebuilt.append(Unrebuilt(trajectory=trajectory.id, why=replayed.why_not))
        for difference in replayed.differences:
            found.problem(f"replay: {difference}", part=part, trajectory=trajectory.id)


def _check_books(folder: Path, plan: Sequence[PlanLine] | None, *, heads: Heads, found: _Findings) -> bool:
    if plan is None:
        try:
            plan = read_plan(folder, expected_head=heads.plan)
        except KifuError as error:
            found.problem(str(error), part=PLAN)
            return False
    problems, closed = check_plan(plan, found.kept, stored=found.stored)
    found.problems += problems
    return closed
