"""Records of finished runs as the data of an update: copied into the run, checked, dealt out group by group.

The copy makes the run complete by itself: the runs it learned from may go.
"""

import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from kifu.envs import Environment
from kifu.errors import ExperimentError, NoSignalError, StorageError
from kifu.monitor import RunFolder
from kifu.records import GENESIS, BlobStore, Group, Provenance, Purpose, Trajectory, writer_of
from kifu.records.checks import bitmaps_of
from kifu.records.reader import STORED, RunReader
from kifu.training.experiment.credit_layers import RewardModel
from kifu.training.experiment.layers import Experiment, StageRecords, Stored, TrainStage

_SHARED = ("tokenizer", "template", "parser")
"""What must be equal for tokens to mean the same."""
Place = TypeVar("Place", bound=tuple[int, ...])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredGroups:
    """Attempts at one task each, in the order they were made."""

    groups: tuple[Group, ...]
    seed: int
    """Of the run: it fixes the order of every pass."""

    def at(self, step: int, *, prompts: int) -> list[Group]:
        """Groups of the ``step``-th step of a stage: passes over all of them, each in a new order.

        A group comes at most once in a pass; what does not fill a step at the end of a pass waits for the next.
        """
        per_step = min(prompts, len(self.groups))
        number, at = self.pass_of(step, prompts=prompts)
        order = np.random.default_rng([self.seed, number]).permutation(len(self.groups))
        return [self.groups[place] for place in sorted(order[at * per_step : (at + 1) * per_step].tolist())]

    def pass_of(self, step: int, *, prompts: int) -> tuple[int, int]:
        """The pass a step belongs to, and its place in it."""
        return divmod(step, len(self.groups) // min(prompts, len(self.groups)))

    @property
    def records(self) -> tuple[Trajectory, ...]:
        """All of them."""
        return tuple(member for group in self.groups for member in group.members)


def stored_names(experiment: Experiment) -> tuple[str, ...]:
    """Runs an experiment takes records from, for its updates and its reward models, as they stand in the file."""
    trains = [stage for stage in experiment.stages.values() if isinstance(stage, TrainStage)]
    layers = [(stage.credit, stage.update) for stage in trains] or [(experiment.credit, experiment.update)]
    found: list[str] = []
    for credit, update in layers:
        for runs in (_runs(update.data), _runs(credit.reward_model)):
            found += runs if not found else [name for name in runs if name not in found]
    return tuple(found)


def _runs(layer: object) -> tuple[str, ...]:
    return layer.runs if isinstance(layer, Stored | RewardModel) else ()


def stored_heads(names: Sequence[str], base: Path) -> list[str]:
    """Digest of the manifest of every run: what the data is, wherever it lies. Every record is read and checked once.

    Raises:
        StorageError: no run there, or it was altered.
        ExperimentError: a run holds no sealed record.
    """
    heads = []
    for name in names:
        reader = _reader(base / name)
        deque(reader.trajectories(live=False), maxlen=0)
        heads.append(reader.head)
    return heads


def copy_runs(names: Sequence[str], *, base: Path, into: Path) -> None:
    """Copy the sealed records of every run, and the bitmaps their supports name, into a run folder.

    Raises:
        StorageError: no run there, it was altered, or it is being written.
    """
    blobs = BlobStore(into / "blobs")
    for at, name in enumerate(names):
        source, target = base / name, into / STORED / f"{at}"
        if target.exists():
            continue
        if (writer := writer_of(source)) is not None:
            raise StorageError(f"{source}: process {writer} is writing this run; train on it when it has finished")
        reader, from_blobs = _reader(source), BlobStore(source / "blobs")
        for record in reader.trajectories(live=False):
            for digest in bitmaps_of(record):
                if not blobs.has(digest):
                    blobs.put(from_blobs.get(digest))
        work = target.with_suffix(".tmp")
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source / "records", work / "records")
        work.rename(target)


def read_groups(
    layer: Stored,
    folder: Path,
    *,
    names: Sequence[str],
    like: Provenance,
    environment: type[Environment],
    seed: int,
    own: frozenset[str],
) -> StoredGroups:
    """The groups a run was given.

    Args:
        layer: which records count.
        folder: the run folder that holds the copies.
        names: every run that was copied, in order.
        like: of the run's own records: tokens must mean the same there.
        environment: of the run: attempts at tasks of another world say nothing of this one.
        seed: of the run.
        own: purposes of the records that the run itself makes to train on, whose ids must differ.

    Raises:
        ExperimentError: recorded under another tokenizer or in another environment, two records of one id, or nothing
            that counts.
    """
    found: dict[tuple[int, int, int], list[Trajectory]] = {}
    seen: set[str] = set()
    for at, name in _places(layer, names):
        for record in RunReader(folder / STORED / f"{at}").trajectories(live=False):
            if record.key.purpose is not Purpose(layer.records):
                continue
            _check(record, like=like, environment=environment, where=name)
            if layer.records in own and record.key.seed == seed:
                raise ExperimentError(
                    f"update.data.runs: `{name}` has this run's seed {seed}, so its records could have the ids of "
                    "those this run makes; start with another seed"
                )
            if record.id in seen:
                raise ExperimentError(
                    f"update.data.runs: `{record.id}` stands in two of them; give runs of other seeds"
                )
            seen.add(record.id)
            if _counts(record, layer.outcome):
                found.setdefault((at, record.key.step, record.key.group), []).append(record)
    if not found:
        raise ExperimentError(
            f"update.data: {len(layer.runs)} runs hold no record of purpose `{layer.records}` and outcome "
            f"`{layer.outcome}`; set update.data.records or update.data.outcome, or give other runs"
        )
    return StoredGroups(groups=_grouped(found), seed=seed)


def read_attempts(layer: StageRecords, folder: Path, *, steps: range, seed: int) -> StoredGroups:
    """The groups that an earlier stage of the run made.

    Args:
        layer: which records count.
        folder: the run folder.
        steps: of the earlier stage; all of them are over.
        seed: of the run.

    Raises:
        NoSignalError: it made nothing that counts.
    """
    groups = attempts(folder, steps, outcome=layer.outcome)
    if not groups:
        raise NoSignalError(
            f"stage `{layer.stage}` made no record of outcome `{layer.outcome}`, so nothing can be learned from it. "
            "Let it make more attempts, choose easier tasks, or imitate demonstrations before it."
        )
    return StoredGroups(groups=groups, seed=seed)


def attempts(folder: Path, steps: range, *, outcome: str = "all") -> tuple[Group, ...]:
    """What a run sampled or demonstrated in some of its steps, in order.

    Args:
        folder: the run folder.
        steps: of the run; all of them are over.
        outcome: ``success`` leaves out what the verdict did not find to be one.
    """
    found: dict[tuple[int, int], list[Trajectory]] = {}
    for record in RunReader(folder).trajectories():
        made = record.key.purpose is not Purpose.EVALUATION and record.key.step in steps
        if made and _counts(record, outcome):
            found.setdefault((record.key.step, record.key.group), []).append(record)
    return _grouped(found)


def _counts(record: Trajectory, outcome: str) -> bool:
    return outcome == "all" or (record.verdict is not None and record.verdict.success is True)


def _grouped(found: Mapping[Place, Sequence[Trajectory]]) -> tuple[Group, ...]:
    members = [sorted(found[place], key=lambda record: record.key) for place in sorted(found)]
    return tuple(Group(task=item[0].task, members=tuple(item)) for item in members)


def _places(layer: Stored, names: Sequence[str]) -> list[tuple[int, str]]:
    """The copies of a layer's runs; a run that is named twice was copied twice."""
    taken: dict[str, int] = {}
    found = []
    for name in layer.runs:
        at = [place for place, other in enumerate(names) if other == name]
        found.append((at[min(taken.get(name, 0), len(at) - 1)], name))
        taken[name] = taken.get(name, 0) + 1
    return found


def copied(root: Path) -> list[str]:
    """Paths of the copies a run folder holds, in order."""
    places = [path for path in (root / STORED).glob("*") if path.name.isdecimal()]
    return [str(path.resolve()) for path in sorted(places, key=lambda path: int(path.name))]


def _reader(folder: Path) -> RunReader:
    is_copy = (folder / "records").is_dir() and folder.parent.name == STORED
    head = None if is_copy else RunFolder.open(folder).facts().get("head")
    reader = RunReader(folder, expected_head=None if head == GENESIS else head)
    if not reader.parts:
        raise ExperimentError(f"update.data.runs: {folder} holds no sealed record; let it finish a step first")
    return reader


def _check(record: Trajectory, *, like: Provenance, environment: type[Environment], where: str) -> None:
    found = f"{record.environment.id}/{record.environment.version}"
    own = f"{environment.id or environment.__name__}/{environment.version}"
    for name in _SHARED:
        if getattr(record.provenance, name) != getattr(like, name):
            raise ExperimentError(
                f"update.data.runs: `{where}` was recorded with {name} {getattr(record.provenance, name)[:12]}, this "
                f"run has {getattr(like, name)[:12]}; its tokens would mean something else"
            )
    if found != own:
        raise ExperimentError(
            f"update.data.runs: `{where}` was recorded in environment {found}, and this run's is {own}; give runs of "
            "the same environment and version"
        )
