"""The audit of a run with everything it can be given: noted heads, recomputed logprobs, repeated episodes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kifu.engines import build_engine
from kifu.envs.calling.waiting import to_end
from kifu.errors import AlteredError, FormatError, LockedError, StorageError
from kifu.models import open_folder
from kifu.monitor import GATEWAY, RunFolder, begun, protocol_problem, write_json
from kifu.policy import EngineSpec, Machine, Sampler, ScoreRequest, Weights
from kifu.records import (
    GENESIS,
    AuditReport,
    BlobStore,
    Floats,
    Heads,
    Origin,
    Placed,
    Problem,
    RunReader,
    Support,
    Trajectory,
    as_ints,
    audit_run,
    placed_spans,
    read_chain,
    writer_of,
)
from kifu.sandbox import EFFECTS
from kifu.training.checkpoint import Mark, list_checkpoints, load_checkpoint, read_mark
from kifu.training.effects_audit import effects_problems
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.estimates import Estimates
from kifu.training.inspection.opened_run import OpenedRun, opened
from kifu.training.inspection.replay import replay_trajectory

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.5}
"""Nats a recomputed logprob may differ, by the dtype of the sampler: bfloat16 rounds at every layer."""
_BATCH = 64

AUDIT = "audit.json"
"""What the last audit of a run found, in its folder, with the head it was found at."""

Progress: TypeAlias = Callable[[int], None]


def audit(
    root: Path | str,
    *,
    scores: bool = True,
    replay: bool = False,
    experiment: Loaded | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit a run that nobody is writing, and keep what was found as ``audit.json`` in its folder.

    Args:
        root: the run folder.
        scores: recompute every turn's logprobs from the kept versions; needs the engine and, for language models, the
            model.
        replay: also execute every record's actions again.
        experiment: the experiment again, for runs started from Python with objects a file cannot name.
        progress: told how many records are recomputed.

    Raises:
        StorageError: no run there.
        LockedError: another process is writing the run.
        ExperimentError: the experiment of the folder cannot be rebuilt here; do without scores and replay.
    """
    folder = RunFolder(root=Path(root))
    with suppress(AlteredError):  # a damaged run.json is one of the problems
        RunFolder.open(folder.root)
    writer = writer_of(folder.root)
    if writer is not None:
        raise LockedError(
            f"{folder.root}: process {writer} is writing this run, so its files do not agree yet; audit it when that "
            "has stopped. `kifu show` and `kifu report` read a run while it is written."
        )
    facts, problems = _facts(folder)
    heads, more = _heads(folder, facts)
    problems += more
    try:
        report = _report(
            folder, facts, heads=heads, scores=scores, replay=replay, experiment=experiment, progress=progress
        )
    except (AlteredError, FormatError) as error:  # the run cannot be opened, its files can be checked all the same
        report = audit_run(folder.root, heads=heads)
        if str(error) not in {item.what for item in (*problems, *report.problems)}:
            problems.append(Problem(what=f"nothing was recomputed: {error}"))
    report = replace(report, problems=(*report.problems, *problems, *_effects(folder, facts)))
    with suppress(StorageError):  # a run on a medium that cannot be written is audited all the same
        write_json(folder.root / AUDIT, {**report.to_json(), "head": facts.get("head")})
    return report


def _facts(folder: RunFolder) -> tuple[dict[str, Any], list[Problem]]:
    """What ``run.json`` says, and what is wrong with it; nothing that is wrong is used."""
    try:
        facts = folder.facts()
        if GATEWAY not in facts:
            begun(folder)
    except StorageError as error:
        return {}, [Problem(what=str(error), part=folder.run_json.name)]
    return facts, []


def _report(
    folder: RunFolder,
    facts: Mapping[str, Any],
    *,
    heads: Heads,
    scores: bool,
    replay: bool,
    experiment: Loaded | None,
    progress: Progress | None,
) -> AuditReport:
    if not (scores or replay):
        return audit_run(folder.root, heads=heads)
    served = facts.get(GATEWAY)
    if isinstance(served, dict):
        return _report_served(folder, served, heads=heads, progress=progress if scores else None, scores=scores)
    with opened(folder.root, experiment=experiment) as run:
        scorer = _scorer(run, progress)
        dtype = run.prepared.machine.sampler_dtype if run.prepared.model is not None else "float32"
        report = audit_run(
            folder.root,
            heads=heads,
            score=scorer if scores else None,
            estimate=Estimates(run, kept=scorer.kept, sampler_of=scorer.at) if scores else None,
            logprob_tolerance=TOLERANCE[dtype],
            replay=partial(replay_trajectory, prepared=run.prepared, states=BlobStore(folder.blobs))
            if replay
            else None,
        )
    if scorer.unreadable and not any((item.part or "").startswith("weights/") for item in report.problems):
        unread = [Problem(what=what, part="weights") for what in scorer.unreadable.values()]
        report = replace(report, problems=(*report.problems, *unread))
    return report


def _report_served(
    folder: RunFolder, served: Mapping[str, Any], *, heads: Heads, progress: Progress | None, scores: bool
) -> AuditReport:
    """Audit what a gateway recorded: one version, that of the model it served."""
    if not scores:
        return audit_run(folder.root, heads=heads)
    model = open_folder(Path(served["model"]))
    if model.digests.weights != served["weights"]:
        raise StorageError(
            f"{model.path}: its weights are {model.digests.weights[:12]}, the run was served from "
            f"{str(served['weights'])[:12]}; put that model back, or audit with --no-scores"
        )
    machine = Machine(threads=1)
    engine = build_engine("hf", EngineSpec(model=str(model.path), machine=machine, max_context=served["max_context"]))
    try:
        scorer = _Scorer(
            {0}, blobs=BlobStore(folder.blobs), start=lambda _: engine.sampler, stored=_one_version, progress=progress
        )
        return audit_run(folder.root, heads=heads, score=scorer, logprob_tolerance=TOLERANCE["float32"])
    finally:
        engine.close()


def _heads(folder: RunFolder, facts: Mapping[str, Any]) -> tuple[Heads, list[Problem]]:
    """Heads noted in ``run.json``, and what the last checkpoint notes that is no longer there."""
    problems = list[Problem]()
    heads = Heads(
        manifest=_noted(facts.get("head")),
        plan=_noted(facts.get("plan_head")),
        versions=_noted(facts.get("versions_head")),
    )
    protocol = protocol_problem(folder) if facts else None
    if protocol is not None:
        problems.append(Problem(what=protocol, part=folder.protocol.name))
    complete = list_checkpoints(folder.checkpoints)
    problems += [
        Problem(
            what=f"{path}: no mark.json; a checkpoint appears whole, so it was taken away. Delete the folder and "
            "`kifu resume` goes on from the one before.",
            part=f"checkpoints/{path.name}",
        )
        for path in sorted(folder.checkpoints.glob("step-*"))
        if path not in complete
    ]
    for path in complete[-1:]:
        try:
            mark = load_checkpoint(path)[0]
        except StorageError as error:
            problems.append(Problem(what=str(error), part=f"checkpoints/{path.name}"))
            continue
        problems += _missing_of(mark, folder)
    return heads, problems


def _effects(folder: RunFolder, facts: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the run's log of effects, by every head and seal that is noted elsewhere."""
    seals = {"run.json": facts.get("effects_seal")}
    for path in list_checkpoints(folder.checkpoints):
        with suppress(StorageError):  # a damaged one is named among the checkpoints
            seals[f"checkpoints/{path.name}"] = read_mark(path).effects_seal
    try:
        found = effects_problems(folder.root, RunReader(folder.root).trajectories(), seals=seals)
    except StorageError:
        return []  # the audit of the records says so
    return [Problem(what=what, part=EFFECTS) for what in found]


def _noted(head: object) -> str | None:
    return head if isinstance(head, str) and head != GENESIS else None


def _missing_of(mark: Mark, folder: RunFolder) -> list[Problem]:
    problems = []
    for name, path, head in (
        ("records/manifest.jsonl", folder.records / "manifest.jsonl", mark.manifest_head),
        ("plan.jsonl", folder.plan, mark.plan_head),
    ):
        try:
            read_chain(path, expected_head=_noted(head))
        except StorageError as error:
            problems.append(Problem(what=f"as noted in checkpoint {mark.step}: {error}", part=name))
    return problems


def _scorer(run: OpenedRun, progress: Progress | None) -> "_Scorer":
    return _Scorer(
        {item.version for item in run.weights.versions},
        blobs=BlobStore(run.folder.blobs),
        start=lambda version: run.engine(version).sampler,
        stored=run.stored,
        progress=progress,
    )


def _one_version(version: int) -> Weights:
    raise StorageError(f"version {version} is not kept: what a gateway serves has one version")


class _Scorer:
    """Recomputes logprobs; one engine serves every version in turn."""

    def __init__(
        self,
        kept: set[int],
        *,
        blobs: BlobStore,
        start: Callable[[int], Sampler],
        stored: Callable[[int], Weights],
        progress: Progress | None,
    ) -> None:
        self.kept = kept
        self._blobs = blobs
        self._start = start
        self._stored = stored
        self._progress = progress
        self._sampler: Sampler | None = None
        self._done = 0
        self.unreadable: dict[int, str] = {}
        """Versions that are kept and cannot be read, and why."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[list[Floats | None]]:
        answers: list[list[Floats | None]] = []
        by_version: dict[int, list[tuple[int, int, ScoreRequest]]] = {}
        for at, trajectory in enumerate(trajectories):
            spans = list(placed_spans(trajectory, origin=Origin.POLICY))
            answers.append([None] * len(spans))
            for index, placed in enumerate(spans):
                version = placed.span.policy_version
                if version in self.kept:
                    assert version is not None
                    by_version.setdefault(version, []).append((at, index, self._request(trajectory, placed)))
        to_end(self._fill(by_version, answers))
        self._done += len(trajectories)
        if self._progress is not None:
            self._progress(self._done)
        return answers

    def _request(self, trajectory: Trajectory, placed: Placed) -> ScoreRequest:
        span = placed.span
        assert span.sampling is not None
        return ScoreRequest(
            token_ids=as_ints(trajectory.tape_ids(placed.tape)[: placed.stop]),
            positions=as_ints(np.arange(placed.start, placed.stop)),
            sampling=span.sampling,
            support=None if span.support is None else tuple(self._listed(item) for item in span.support),
        )

    def _listed(self, support: Support | None) -> Support | None:
        """A bitmap as the ids it keeps; the engine has no table of bitmaps."""
        if support is None or support.mask is None:
            return support
        bits = np.unpackbits(np.frombuffer(self._blobs.get(support.mask), np.uint8), bitorder="little")
        return Support.of(np.flatnonzero(bits))

    async def _fill(
        self, by_version: dict[int, list[tuple[int, int, ScoreRequest]]], answers: list[list[Floats | None]]
    ) -> None:
        for version in sorted(by_version):
            try:
                sampler = await self.at(version)
            except StorageError as error:
                self.unreadable[version] = str(error)
                continue
            jobs = by_version[version]
            for first in range(0, len(jobs), _BATCH):
                batch = jobs[first : first + _BATCH]
                found = await sampler.score([request for _, _, request in batch])
                for (at, index, _), scores in zip(batch, found, strict=True):
                    answers[at][index] = scores.logprobs

    async def at(self, version: int) -> Sampler:
        """The sampler with a kept version's weights."""
        if self._sampler is None:
            self._sampler = self._start(version)
        elif self._sampler.version != version:
            await self._sampler.load(self._stored(version))
        return self._sampler
