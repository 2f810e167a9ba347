"""Everything of a run that is alive: engine, collectors, weights, and what the record already holds."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kifu.credit.branching import Independent
from kifu.engines import build_engine
from kifu.envs import SnapshotKind, Task
from kifu.errors import AlteredError, EngineFailure
from kifu.monitor import RunFolder
from kifu.policy import Engine, Machine, Weights
from kifu.records import Purpose, Trajectory
from kifu.records.blobs import BlobStore
from kifu.records.checks import bitmaps_of
from kifu.records.store import RunStore
from kifu.records.weights import WeightStore
from kifu.sandbox import EFFECTS, EffectFile
from kifu.training.collection.allocation import allocator_of
from kifu.training.collection.books import Books
from kifu.training.collection.branching import Grower, branching_setting, vocabulary_of
from kifu.training.collection.collect import Collector
from kifu.training.collection.fact_sources import Asked, asked_of
from kifu.training.collection.outside_rollouts import outside_rollouts
from kifu.training.collection.refill import refill_of
from kifu.training.collection.segments import Segments
from kifu.training.experiment.first_weights import start_weights
from kifu.training.experiment.layers import Experiment
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.tasks import demonstration_task

_PROMPT_EXAMPLES = 1_000
"""Demonstration tasks left for examples in prompts."""
_PER_RUN = 10_000
"""Demonstration tasks of one run."""


class Bench:
    """Owns the engine of the present stage and what rollouts need.

    Args:
        prepared: the frozen experiment.
        folder: the run folder.
        store: its records, open for writing.
        weights: its versions, open for writing.
        seed: of the run.
        recorded: trajectories the record already holds and that a resumed loop may need.
        begins: version that each step on record began with.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        folder: RunFolder,
        store: RunStore,
        weights: WeightStore,
        seed: int,
        recorded: Sequence[Trajectory] = (),
        begins: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.prepared = prepared
        self.folder = folder
        self.seed = seed
        self._store = store
        self._weights = weights
        self._recorded: dict[int, dict[str, Trajectory]] = {}
        for trajectory in recorded:
            self._recorded.setdefault(trajectory.key.step, {})[trajectory.id] = trajectory
        self._blobs = BlobStore(folder.blobs)
        self._segments: Segments | None = None
        declared = prepared.environment.capabilities
        if declared.continuing and declared.snapshot is SnapshotKind.STATE:
            self._segments = Segments(self._blobs, recorded)
        self.effects = EffectFile(folder.root / EFFECTS) if declared.effects else None
        """The run's log of effects, for environments that declare any."""
        self._begins = begins
        self._asked = Asked()
        self.books = Books()
        self.engine: Engine
        self.collector: Collector
        self.evaluator: Collector

    @property
    def experiment(self) -> Experiment:
        """The six layers."""
        return self.prepared.experiment

    @property
    def machine(self) -> Machine:
        """How the machine is used."""
        return self.prepared.machine

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        return self.prepared.stages

    @property
    def steps(self) -> int:
        """Of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage_at(self, step: int) -> Stage:
        """The stage that step ``step`` belongs to; after the last step, the last stage."""
        return next((stage for stage in self.stages if step < stage.first + stage.steps), self.stages[-1])

    def recorded(self, step: int) -> Mapping[str, Trajectory]:
        """What the record already held for a step (or an evaluation of a version) when the run was opened."""
        return self._recorded.get(step, {})

    def demonstration(self, index: int) -> Task:
        """The ``index``-th task that is demonstrated in a warm start; prompts take theirs from before these."""
        at, limit_s = _PROMPT_EXAMPLES + self.seed * _PER_RUN + index, self.prepared.tool_seconds
        return demonstration_task(self.prepared.environment, at, limit_s=limit_s)

    def bring_up(self, stage: Stage, *, initial: Weights | None) -> Engine:
        """Make the engine of a stage; the one before is let go first."""
        self.let_go()
        name = self.experiment.policy.engine
        try:
            self.engine = build_engine(name, self.prepared.engine_spec(stage, seed=self.seed, initial=initial))
        except (RuntimeError, MemoryError) as cause:  # what torch raises when memory does not suffice
            raise EngineFailure(
                f"the engine `{name}` cannot be built: {cause}. Choose a smaller model, or a machine with more memory."
            ) from cause
        began = self._begins.get(stage.first)
        first = initial if began is None else self.kept(began)
        self._asked = asked_of(stage, self.prepared, sampler=self.engine.sampler, seed=self.seed, first=first)
        tasks = self.prepared.task_source(self.seed)
        setting, plan = self.prepared.setting, stage.algorithm.plan
        setting = replace(setting, effects=self.effects)
        setting = setting if self._segments is None else replace(setting, states=self._blobs)
        self.collector = Collector(
            setting=branching_setting(setting, plan, environment=self.prepared.environment, states=self._blobs),
            sampler=self.engine.sampler,
            tasks=tasks,
            accept=self._accept,
            seed=self.seed,
            books=self.books,
            segments=self._segments,
            at_once=self.machine.max_slots,
            allocator=allocator_of(stage, self.folder.root),
            refill=refill_of(stage),
            scoring=self._asked.scoring,
            grower=Grower(plan=plan.rollout, vocabulary=vocabulary_of(self.prepared.renderer)),
            temperatures=self.experiment.policy.decoding.temperatures,
            outside=outside_rollouts(self.prepared, self.engine, store=self._store, blobs=self._blobs),
        )
        alone = Grower(plan=Independent(), vocabulary=0)
        self.evaluator = replace(
            self.collector,
            setting=replace(self.prepared.evaluation_setting(), effects=self.effects),
            books=Books(),
            grower=alone,
            allocator=None,
            refill=None,
            scoring=None,
            temperatures=(),
        )
        return self.engine

    def let_go(self) -> None:
        """End the engine and free what it holds, if there is one."""
        if hasattr(self, "engine"):
            self.engine.close()
            self._asked.close()
            del self.engine, self.collector, self.evaluator

    async def _accept(self, trajectory: Trajectory) -> None:
        for digest in bitmaps_of(trajectory):
            if not self._blobs.has(digest):  # a record never names a bitmap that is not there
                await asyncio.to_thread(self._blobs.put, self.engine.bitmaps[digest])
        await asyncio.wrap_future(self._store.accept(trajectory))

    def fetch_bitmaps(self, trajectories: Iterable[Trajectory]) -> None:
        """Give the trainer the bitmaps of records it did not sample in this process."""
        for trajectory in trajectories:
            for digest in bitmaps_of(trajectory):
                if digest not in self.engine.bitmaps:
                    self.engine.bitmaps[digest] = self._blobs.get(digest)

    def keep(self, weights: Weights) -> str:
        """Store a version and give its digest; a version that is known must be the same.

        Raises:
            AlteredError: retraining from the record gave other weights than the run published before.
        """
        digest = weights.digest()
        known = {version.version: version.digest for version in self._weights.versions}
        if weights.version in known and known[weights.version] != digest:
            raise AlteredError(
                f"{self.folder.weights}: version {weights.version} was published as {known[weights.version][:12]}, "
                f"retraining from the record gives {digest[:12]}. The machine or its libraries differ from those of "
                "the run (see run.json); resume where they are equal."
            )
        if weights.version not in known:
            self._weights.put(
                weights.version, weights.tensors, bfloat16=weights.bfloat16, is_adapter=weights.is_adapter
            )
        return digest

    def start(self) -> Weights | None:
        """The last version of the run that ``policy.from`` names, as version 0 of this one; None without one.

        Raises:
            StorageError: no run there, or it published nothing.
        """
        policy, digest = self.experiment.policy, self.prepared.start
        if policy.start is None or digest is None:
            return None
        return start_weights(self.prepared.loaded.folder / policy.start, digest=digest)

    def kept(self, version: int) -> Weights:
        """A stored version."""
        stored = self._weights.get(version)
        return Weights(
            version=version,
            tensors=stored.tensors,
            bfloat16=frozenset(stored.bfloat16),
            is_adapter=stored.is_adapter,
        )


async def stop_listening(bench: Bench) -> None:
    """End what listens on this event loop; the engine stays."""
    if hasattr(bench, "collector") and bench.collector.outside is not None:
        await bench.collector.outside.close()


def relevant(trajectory: Trajectory, *, step: int, version: int) -> bool:
    """Whether a loop that goes on at ``step`` may need this record again; segments go on from the step before."""
    if trajectory.key.purpose is Purpose.EVALUATION:
        return trajectory.key.step >= version
    return trajectory.key.step >= (step if trajectory.segment is None else step - 1)
