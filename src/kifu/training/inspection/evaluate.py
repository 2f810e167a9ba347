"""Evaluating a kept version of a run. Its record is only read; the rollouts go to a small store of their own."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kifu.envs.calling.waiting import to_end
from kifu.errors import ExperimentError, UsageError
from kifu.evaluation import BestOf, EffectAudit, EvaluationSummary, TrainingHistory, summarize
from kifu.monitor import reader_of, write_json
from kifu.records import BlobStore, RunStore, Trajectory
from kifu.rollout import Setting
from kifu.sandbox import EFFECTS, EffectFile, read_effects
from kifu.training.collection.books import Books
from kifu.training.collection.collect import Collector
from kifu.training.collection.outside_rollouts import outside_rollouts
from kifu.training.effects_audit import effects_problems
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.judges import judge_of
from kifu.training.inspection.opened_run import OpenedRun, opened

EVALUATIONS = "evaluations"
"""Folder inside the run folder; each evaluation has a numbered one in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to evaluate; None is what layer 6 of the run says."""

    checkpoint: str | int = "last"
    """Number of a kept version, ``first`` or ``last``."""
    split: str | None = None
    tasks: int | None = None
    tries: int | None = None
    decoding: Literal["greedy", "sampled"] | None = None
    audit_safety: bool = False
    """Whether the summary says what was done to the world, from the log of effects and the verdicts."""
    best_of: int | None = None
    """Attempts at a task that ``judge`` chooses among, instead of ``tries``."""
    judge: str | None = None
    """A run folder with a reward model, or ``file.py:function`` of a `kifu.training.inspection.judges.Candidate`."""

    def __post_init__(self) -> None:
        """Refuse a choice that is none."""
        if (self.best_of is None) is not (self.judge is None):
            raise UsageError("`best_of` and `judge` go together: how many attempts, and who chooses among them")
        if self.best_of is None:
            return
        if self.best_of < 2:
            raise UsageError(f"`best_of`: found {self.best_of}, expected at least 2 attempts to choose from")
        if self.tries not in (None, self.best_of):
            raise UsageError(
                f"`best_of` makes {self.best_of} attempts at a task, and `tries` says {self.tries}; leave `tries` out"
            )
        if self.decoding == "greedy":
            raise UsageError("`best_of` chooses among sampled attempts, and greedy ones are all alike; drop `decoding`")


def evaluate(
    root: Path | str,
    evaluation: Evaluation | None = None,
    *,
    experiment: Loaded | None = None,
    keep: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationSummary:
    """Attempt tasks of a split with a kept version.

    Args:
        root: the run folder.
        evaluation: what to evaluate.
        experiment: the experiment again, for runs started from Python with objects a file cannot name.
        keep: write the rollouts and the summary to ``RUN/evaluations/NNNN/``.
        progress: told rollouts done and rollouts in all.

    Raises:
        StorageError: no run there, or the version is not kept.
        ExperimentError: no such split, it has too few tasks, or the judge cannot read these attempts.
        UsageError: the judge is neither a run nor a function, or gives no number.
    """
    wanted, root = evaluation or Evaluation(), Path(root)
    with opened(root, experiment=experiment, same_code=True) as run:
        score = None if wanted.judge is None else judge_of(wanted.judge, run)
        layer = run.prepared.experiment.evaluation
        wanted = Evaluation(
            checkpoint=run.version(wanted.checkpoint),
            split=wanted.split or layer.split,
            tasks=wanted.tasks or layer.tasks,
            tries=wanted.best_of or wanted.tries or layer.tries,
            decoding="sampled" if wanted.best_of else wanted.decoding or layer.decoding,
            audit_safety=wanted.audit_safety,
            best_of=wanted.best_of,
            judge=wanted.judge,
        )
        splits = run.prepared.experiment.environment.splits
        if wanted.split not in splits:
            raise ExperimentError(f"{root}: no split `{wanted.split}`; environment.splits has: {', '.join(splits)}")
        with _sink(run, keep=keep) as accept:
            trajectories = to_end(_attempts(run, wanted, accept=accept, progress=progress))
            effects = _audited(accept, trajectories) if wanted.audit_safety else None
        history = TrainingHistory.of(reader_of(run.folder).trajectories())
        summary = summarize(trajectories, run=str(root), checkpoint=str(wanted.checkpoint), history=history)
        summary = replace(summary, effects=effects)
        if score is not None and wanted.judge is not None and wanted.best_of is not None:
            best = BestOf.of(trajectories, score(trajectories), n=wanted.best_of, judge=wanted.judge)
            summary = replace(summary, best_of=best)
        if accept.folder is not None:
            sealed = {} if accept.effects is None else {"effects_seal": accept.effects.seal}
            write_json(accept.folder / "evaluation.json", {"decoding": wanted.decoding, **sealed, **summary.to_json()})
        return summary


class _Accept:
    """Takes finished rollouts; keeps them durable where there is a store."""

    def __init__(self, folder: Path | None, *, scratch: Path | None = None, has_effects: bool = False) -> None:
        self.folder = folder
        kept = folder or scratch
        self.store = None if kept is None else RunStore(kept)
        self.effects = EffectFile(kept / EFFECTS) if kept is not None and has_effects else None

    async def __call__(self, trajectory: Trajectory) -> None:
        if self.store is not None:
            await asyncio.wrap_future(self.store.accept(trajectory))

    def close(self) -> None:
        if self.effects is not None:
            self.effects.close()
        if self.store is not None:
            self.store.seal(0)
            self.store.close()


@contextmanager
def _sink(run: OpenedRun, *, keep: bool) -> Iterator[_Accept]:
    with ExitStack() as stack:
        scratch, has_effects = None, run.prepared.environment.capabilities.effects
        # a gateway answers nothing that is not on the disk, and a log of effects is a file
        if not keep and (run.prepared.outsider is not None or has_effects):
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kifu-eval-")))
        folder = _new_folder(run.folder.root / EVALUATIONS) if keep else None
        accept = _Accept(folder, scratch=scratch, has_effects=has_effects)
        stack.callback(accept.close)
        yield accept


def _audited(accept: _Accept, trajectories: Sequence[Trajectory]) -> EffectAudit:
    """What was done to the world, after the log itself was checked against the records."""
    if accept.effects is None:
        return EffectAudit.of(trajectories, None)
    accept.effects.flush()
    path = accept.effects.path
    problems = effects_problems(path.parent, trajectories, seals={"this evaluation": accept.effects.seal})
    return EffectAudit.of(trajectories, read_effects(path), problems=problems)


def _new_folder(parent: Path) -> Path:
    """The next numbered folder; two evaluations at once get two."""
    number = 1 + max((int(path.name) for path in parent.glob("[0-9]*") if path.name.isdecimal()), default=0)
    while True:
        folder = parent / f"{number:04d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        return folder


async def _attempts(
    run: OpenedRun, wanted: Evaluation, *, accept: _Accept, progress: Callable[[int, int], None] | None
) -> list[Trajectory]:
    assert isinstance(wanted.checkpoint, int)
    assert wanted.split is not None
    assert wanted.tasks is not None
    assert wanted.tries is not None
    total, done = wanted.tasks * wanted.tries, 0

    async def counted(trajectory: Trajectory) -> None:
        nonlocal done
        await accept(trajectory)
        done += 1
        if progress is not None:
            progress(done, total)

    engine, blobs = run.engine(wanted.checkpoint), BlobStore(run.folder.blobs)
    outside = None if accept.store is None else outside_rollouts(run.prepared, engine, store=accept.store, blobs=blobs)
    collector = Collector(
        setting=replace(decoded(run.prepared, wanted.decoding), effects=accept.effects),
        sampler=engine.sampler,
        tasks=run.prepared.task_source(run.seed),
        accept=counted,
        seed=run.seed,
        books=Books(),
        at_once=run.prepared.machine.max_slots,
        outside=outside,
    )
    try:
        groups = await collector.evaluation_groups(
            wanted.checkpoint, split=wanted.split, tasks=wanted.tasks, tries=wanted.tries, have={}
        )
    finally:
        if outside is not None:
            await outside.close()
    return [member for group in groups for member in group.members]


def decoded(prepared: Prepared, decoding: Literal["greedy", "sampled"] | None) -> Setting:
    """As rollouts are collected, decoded greedily or as they are sampled; None is what layer 6 says."""
    if decoding is None:
        return prepared.evaluation_setting()
    return prepared.setting if decoding == "sampled" else prepared.setting.greedy()
