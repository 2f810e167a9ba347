"""Which task stands at which place: splits as disjoint ranges of seeds, or a finite list in a seeded order."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from kifu.envs import Environment, Task
from kifu.envs.questions import LIMIT_S, asked
from kifu.envs.splits import SPLITS
from kifu.errors import ExperimentError, UsageError
from kifu.training.experiment.arguments import MAX_SEED

Generator = Callable[[str, int], Iterable[Task]]
"""(split, first seed) to an endless stream of tasks, one per seed."""

_RANGE = re.compile(r"seed\s+(\d[\d_]{0,40})\s*\.\.\s*(\d[\d_]{0,40})?")
_OPEN = 1 << 31
_CHECKED = 64
"""Tasks of a split that are made before a run begins."""
_STRIDE = 1_000_003
"""Distance between the first tasks of neighbouring run seeds; a prime, so that runs overlap late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRange:
    """Seeds ``first`` to ``last``, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


def parse_splits(splits: Mapping[str, str]) -> dict[str, SeedRange]:
    """Read ``seed FIRST..LAST``; an open end stops before the next split begins.

    Raises:
        ExperimentError: not a range, empty, or overlapping another split.
    """
    found: dict[str, tuple[int, int | None]] = {}
    for name, text in splits.items():
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise ExperimentError(
                f"environment.splits.{name}: found {text!r}, expected `seed FIRST..` or `seed FIRST..LAST`"
            )
        found[name] = (int(match[1]), int(match[2]) if match[2] else None)
        if max(number for number in found[name] if number is not None) > MAX_SEED:
            raise ExperimentError(f"environment.splits.{name}: found {text!r}, expected seeds up to {MAX_SEED}")
    starts = sorted(first for first, _ in found.values())
    ranges = {}
    for name, (first, last) in found.items():
        following = next((start for start in starts if start > first), _OPEN)
        ranges[name] = SeedRange(first=first, last=following - 1 if last is None else last)
        if ranges[name].last < first:
            raise ExperimentError(
                f"environment.splits.{name}: found {splits[name]!r}, which holds no seed; expected FIRST at most LAST"
            )
    _refuse_overlap(ranges)
    return ranges


def _refuse_overlap(ranges: Mapping[str, SeedRange]) -> None:
    ordered = sorted(ranges.items(), key=lambda item: item[1].first)
    for (name, one), (other, two) in itertools.pairwise(ordered):
        if two.first <= one.last:
            raise ExperimentError(
                f"environment.splits: `{name}` ({one.first}..{one.last}) and `{other}` ({two.first}..{two.last}) "
                "share seeds; a held-out task must never be trained on"
            )


def _task(found: object) -> Task:
    if not isinstance(found, Task):
        raise TypeError(f"tasks() must give Tasks, found {type(found).__name__}")
    return found


def _first(tasks: Iterable[object]) -> Task | None:
    for task in tasks:
        return _task(task)
    return None


def task_at(generate: Generator, *, split: str, seed: int, limit_s: float) -> Task | None:
    """The task an environment makes of a seed; None when it makes none.

    Args:
        generate: the environment's ``tasks``.
        split: to ask for.
        seed: of the task.
        limit_s: seconds that may take.

    Raises:
        EnvironmentFailure: it raised, or took longer.
    """
    what = f"listing the task of seed {seed} of split `{split}`"
    return asked("environment", what, lambda: _first(generate(split, seed)), limit_s=limit_s)


class TaskSource(Protocol):
    """Tasks by place, the same for every process that knows the seed."""

    def training(self, index: int) -> Task:
        """The ``index``-th training task of the run."""
        ...

    def evaluation(self, split: str, index: int) -> Task:
        """The ``index``-th task of a split; the same in every run, so that runs are compared on equal tasks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTasks:
    """Tasks made from seeds by the environment."""

    generate: Generator
    ranges: Mapping[str, SeedRange]
    seed: int
    """Of the run."""
    limit_s: float = LIMIT_S
    """Seconds the environment may take for one task."""

    def training(self, index: int) -> Task:
        """Consecutive seeds from a start that depends on the run's seed, around the end of the split."""
        span = self.ranges["train"]
        return self._at("train", span.first + (self.seed * _STRIDE + index) % len(span))

    def evaluation(self, split: str, index: int) -> Task:
        """Consecutive seeds from the start of the split."""
        span = self.ranges[split]
        if index >= len(span):
            raise ExperimentError(
                f"split `{split}` holds {len(span)} seeds, task number {index + 1} was asked for; ask for fewer tasks"
            )
        return self._at(split, span.first + index)

    def _at(self, split: str, seed: int) -> Task:
        found = task_at(self.generate, split=split, seed=seed, limit_s=self.limit_s)
        if found is None:
            raise ExperimentError(f"the environment lists no task for seed {seed} of split `{split}`")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTasks:
    """A finite list: training order is a new permutation of the ``train`` tasks every pass."""

    tasks: Sequence[Task]
    seed: int

    def _split(self, split: str) -> list[Task]:
        found = [task for task in self.tasks if task.split == split]
        if not found:
            known = sorted({task.split for task in self.tasks})
            raise ExperimentError(f"no task of split `{split}`; the list has: {', '.join(known) or 'no tasks'}")
        return found

    def training(self, index: int) -> Task:
        """The task at ``index`` of the endless sequence of permuted passes."""
        tasks = self._split("train")
        number, at = divmod(index, len(tasks))
        order = np.random.default_rng([self.seed, number]).permutation(len(tasks))
        return tasks[int(order[at])]

    def evaluation(self, split: str, index: int) -> Task:
        """In the order of the list."""
        tasks = self._split(split)
        if index >= len(tasks):
            raise ExperimentError(
                f"split `{split}` holds {len(tasks)} tasks, task number {index + 1} was asked for; ask for fewer"
            )
        return tasks[index]


def check_tasks(source: TaskSource, *, split: str, evaluated: int, trained: int) -> None:
    """Make tasks the run will meet, so that it does not end for want of them and its figures mean what they say.

    Args:
        source: of the run.
        split: to evaluate on.
        evaluated: tasks of it, of which the first ones and the last one are made.
        trained: tasks to train on, of which the first ones are made.

    Raises:
        ExperimentError: a task of another split than was asked for, tasks of different content under one id, a task
            that is evaluated at two places, or one that is both trained on and evaluated with the same seed.
    """
    train: dict[str, Task] = {}
    for index in range(max(1, min(trained, _CHECKED))):
        _note(source.training(index), among=train, split="train")
    held: dict[str, Task] = {}
    for index in sorted({*range(min(evaluated, _CHECKED)), evaluated - 1}):
        task = source.evaluation(split, index)
        if task.id in held and task.seed == held[task.id].seed:
            raise ExperimentError(
                f"split `{split}`: two of its places hold the same task `{task.id}` with seed {task.seed}; evaluations "
                "count each once. `tasks(split, seed)` of the environment must begin with a task of that very seed, so "
                "draw again from the same seed instead of going on to the next one"
            )
        _note(task, among=held, split=split)
        if split != "train" and task.id in train and task.seed == train[task.id].seed:
            raise ExperimentError(
                f"task `{task.id}` with seed {task.seed} of split `{split}` is also trained on; give "
                "`tasks(split, seed)` of the environment other tasks, or other seeds, for each split"
            )


def _note(task: Task, *, among: dict[str, Task], split: str) -> None:
    if task.split != split:
        raise ExperimentError(
            f"task `{task.id}`: found split `{task.split}`, asked for `{split}`; `tasks(split, seed)` of the "
            "environment must give tasks of the split it is asked for"
        )
    known = among.setdefault(task.id, task)
    if (known.family, known.data) != (task.family, task.data):
        raise ExperimentError(
            f"split `{split}`: tasks of different family or data have the id `{task.id}`; records and evaluations "
            'tell tasks apart by their ids, so make them different, e.g. f"{split}/{seed}"'
        )


def hold_out(tasks: Sequence[Task], *, split: str = "held_out") -> tuple[Task, ...]:
    """The tasks with about a fifth of them moved to ``split``, chosen by the digest of their ids.

    Tasks that name any split besides ``train`` are left as they are.
    """
    if any(task.split != "train" for task in tasks) or len(tasks) < 2:
        return tuple(tasks)
    ranked = sorted(tasks, key=lambda task: hashlib.sha256(task.id.encode()).digest())
    held = {task.id for task in ranked[: max(1, len(tasks) // 5)]}
    return tuple(replace(task, split=split) if task.id in held else task for task in tasks)


def tasks_digest(tasks: Sequence[Task]) -> str:
    """SHA-256 of the canonical JSON of a list of tasks."""
    plain = [[task.id, task.seed, task.family, task.split, dict(task.data)] for task in tasks]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def demonstration_task(environment: type[Environment], index: int, *, limit_s: float = LIMIT_S) -> Task:
    """The ``index``-th task of the environment's split for demonstrations, which is never trained on or evaluated.

    Args:
        environment: makes it.
        index: of the task.
        limit_s: seconds that may take.

    Raises:
        ExperimentError: the environment has no such split.
        EnvironmentFailure: it raised, or took longer.
    """
    who, seed = f"environment `{environment.__name__}`", SPLITS["demonstration"].start + index
    try:
        found = asked(
            who,
            f"listing demonstration task {index}",
            lambda: _first(environment.tasks("demonstration", seed)),
            limit_s=limit_s,
        )
    except (UsageError, NotImplementedError) as cause:
        raise ExperimentError(f"environment `{environment.__name__}` has no split `demonstration`: {cause}") from cause
    if found is None:
        raise ExperimentError(f"{who} lists no task {index} of split `demonstration`")
    return found
