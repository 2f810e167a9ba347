"""The loop: collect, assemble, plan, train, publish, seal. Asynchronous collection is the same loop, started earlier.

A step is closed when its plan lines are durable. Whatever dies after that is retrained from the record; whatever dies
before is collected again, minus what was already accepted. The loop knows no algorithm's name.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kifu.batching import PackedBatch, pack_rows
from kifu.errors import AlteredError, InterruptedRun, NoSignalError
from kifu.evaluation import judged_success
from kifu.monitor import release_free_memory
from kifu.objectives import WithObservations, merge_stats
from kifu.policy import StepResult, Weights
from kifu.records import Cost, Group, Trajectory, limits_exceeded
from kifu.records.ledger import Bucket, Ledger
from kifu.records.plan import PlanLine, PlanLog
from kifu.records.rows import content_digest
from kifu.records.store import RunStore
from kifu.training.checkpoint import Mark, save_checkpoint
from kifu.training.collection.bench import Bench, stop_listening
from kifu.training.collection.books import close_run, close_step, limit_failures
from kifu.training.collection.supply import Supply
from kifu.training.effects_audit import durable_seal
from kifu.training.experiment.stages import Stage
from kifu.training.observe import Observer, StepSeen
from kifu.training.update.assemble import Assembled, assemble
from kifu.training.update.plan import closing_line, plan_line, versions_evaluated


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the loop stands; everything a checkpoint needs besides the trainer."""

    step: int = 0
    version: int = 0
    digest: str = ""
    """Of the weights of ``version``."""
    stalled: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger(step=0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What one step's updates did."""

    assembled: Assembled
    batches: tuple[PackedBatch, ...]
    results: tuple[StepResult, ...]
    stats: Mapping[str, float]
    first_stats: Mapping[str, float]
    """Of the first update, when the policy was still the one that sampled."""

    @property
    def moved(self) -> bool:
        """Whether any optimizer step was applied."""
        return any(result.applied for result in self.results)


class Loop:
    """Drives one run from where its record ends to its last step."""

    def __init__(
        self,
        bench: Bench,
        *,
        store: RunStore,
        plans: PlanLog,
        planned: Sequence[PlanLine],
        progress: Progress,
        observer: Observer,
    ) -> None:
        self._bench = bench
        self._store = store
        self._plans = plans
        self._planned = {(line.step, line.update): line for line in planned}
        self._supply = Supply(bench, planned=planned, step=progress.step)
        self._observer = observer
        self._ahead: dict[int, asyncio.Task[list[Group]]] = {}
        self._waiting: asyncio.Future[list[Group]] | None = None
        self._stopped = False
        self._updating = False
        self._evaluated: dict[str, Bucket] = {}
        self._last_evaluated: dict[str, Trajectory] = {}
        self._evaluated_versions = versions_evaluated(line for line in planned if line.step < progress.step)
        self.progress = progress

    async def run(self) -> None:
        """Train every remaining step; evaluate before, between and after.

        Raises:
            NoSignalError: several steps in a row without an informative group.
            FailureRateError: the environment fails more often than the experiment allows.
            LedgerError: double entry does not close.
        """
        try:
            while self.progress.step < self._bench.steps:
                if self._evaluation_due():
                    await self._evaluate()
                await self._step(self._bench.stage_at(self.progress.step))
            await self._evaluate()
            if self._evaluated:
                self.progress.ledger = close_run(self.progress.ledger, self._bench.books)
                line = closing_line(
                    step=self._bench.steps,
                    version=self.progress.version,
                    head=self._store.head,
                    buckets=self._evaluated,
                    ledger=self.progress.ledger,
                )
                self._commit(line)
            self._store.seal(self._bench.steps)
        finally:
            for task in self._ahead.values():
                task.cancel()
            await asyncio.gather(*self._ahead.values(), return_exceptions=True)

    async def _step(self, stage: Stage) -> None:
        step = self.progress.step
        self._observer.begin()
        if step == stage.first and step > 0:
            await self._change_stage(stage)
        self._supply.begin(step, self.progress.version)
        with self._observer.collecting():
            groups = await self._groups(stage, step)
        trajectories = {member.id: member for group in groups for member in group.members}
        self._bench.fetch_bitmaps(trajectories.values())
        sampled = [item for item in trajectories.values() if self._supply.sampled_here(stage, item, step=step)]
        limit_failures(sampled, limit=self._bench.experiment.environment.failure_rate_limit, step=step)
        release_free_memory()
        with self._observer.training():
            trained = await asyncio.to_thread(self._train, stage, groups, trajectories)
            if trained.moved:
                await self._publish(await asyncio.to_thread(self._bench.engine.trainer.publish))
        self._store.seal(step)
        if step + 1 == stage.stop:
            await asyncio.to_thread(self._supply.scorers.fit, stage)
            self._observer.reward_model = self._supply.scorers.facts
        self.progress.step, self._updating = step + 1, False
        closed, self.progress.ledger = self.progress.ledger, self.progress.ledger.next()
        if (
            self.progress.step == self._bench.steps
            or self.progress.step % self._bench.experiment.record.checkpoint_every == 0
        ):
            await asyncio.to_thread(self.checkpoint)
        self._observer.end(
            StepSeen(
                step=step,
                stage=stage.name,
                version=self.progress.version,
                trajectories=list(trajectories.values()),
                assembled=trained.assembled,
                results=trained.results,
                stats=trained.stats,
                first_stats=trained.first_stats,
                ledger=closed,
                counters=self._bench.engine.counters(),
            )
        )
        self._stalled(trained.assembled, trajectories.values(), stage)

    def _evaluation_due(self) -> bool:
        every, step = self._bench.experiment.evaluation.every, self.progress.step
        begins = any(stage.evaluates and step == stage.first for stage in self._bench.stages)
        return begins or (every is not None and step % every == 0)

    async def _groups(self, stage: Stage, step: int) -> list[Group]:
        own = stage.demonstrations is None and stage.stored is None
        depth = stage.update.max_age if own else 0
        for ahead in range(step, min(step + depth + 1, stage.first + stage.steps)):
            if ahead not in self._ahead:
                self._ahead[ahead] = asyncio.create_task(self._collect(stage, ahead))
        return await self._wait(self._ahead.pop(step))

    def stop(self) -> None:
        """End cleanly: rollouts under way are dropped, an update under way is finished first."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, groups: "asyncio.Future[list[Group]]") -> list[Group]:
        """Wait for rollouts, unless the run is stopped.

        Raises:
            InterruptedRun: `stop` was called.
        """
        self._waiting = groups
        if self._stopped:
            groups.cancel()
        try:
            return await groups
        except asyncio.CancelledError:
            if self._stopped:
                raise InterruptedRun(
                    f"stopped by the user after {self.progress.step} of {self._bench.steps} steps; "
                    f"`kifu resume {self._bench.folder.root}` goes on"
                ) from None
            raise
        finally:
            self._waiting = None

    async def _collect(self, stage: Stage, step: int) -> list[Group]:
        have = self._bench.recorded(step)
        if stage.stored is not None and stage.refreshes:
            return await self._supply.refreshed_groups(stage, stage.stored, step=step)
        if stage.stored is not None:
            return await asyncio.to_thread(self._supply.stored_groups, stage, stage.stored, step=step)
        if stage.demonstrations is not None:
            return await self._bench.collector.demonstrations(
                step,
                traces=stage.demonstrations.traces_per_step,
                first=stage.demonstrations.traces_per_step * (step - stage.first),
                task_at=self._bench.demonstration,
                demonstrate=self._bench.prepared.demonstrator(stage.demonstrations.noise),
                have=have,
            )
        update = stage.update
        return await self._bench.collector.training_groups(
            step,
            prompts=update.prompts_per_step,
            size=update.group_size,
            first=update.prompts_per_step * (step - stage.first),
            have=have,
        )

    def _train(self, stage: Stage, groups: Sequence[Group], trajectories: Mapping[str, Trajectory]) -> Trained:
        step, version = self.progress.step, self.progress.version
        supplied = self._supply.give(stage, groups, step=step, version=version)
        trajectories = {**trajectories, **supplied.borrowed.records}
        self._observer.reward_model = self._supply.scorers.facts
        assembled = assemble(
            supplied.groups,
            algorithm=stage.algorithm,
            rules=stage.rules,
            version=version,
            max_age=stage.update.max_age,
            borrowed=supplied.borrowed,
            scored=supplied.scored,
            observes=stage.update.observation_loss is not None,
        )
        batches = pack_rows(assembled.rows, layout=self._bench.engine.layout, max_nodes=self._bench.machine.max_nodes)
        digests = {name: self._store.digest(name) or content_digest(item) for name, item in trajectories.items()}
        epochs = stage.algorithm.plan.epochs
        self.progress.ledger = close_step(
            self.progress.ledger,
            self._bench.books,
            assembled=assembled,
            trajectories=trajectories,
            epochs=epochs,
            uses=self._supply.uses,
        )
        objective = stage.algorithm.objective()
        if (coefficient := stage.update.observation_loss) is not None:
            objective = WithObservations(inner=objective, coefficient=coefficient)
        results, stats = [], []
        self._updating = True
        for update in range(epochs):
            line = plan_line(
                assembled,
                batches,
                step=step,
                update=update,
                version=version,
                head=self._store.head,
                trajectories=trajectories,
                digests=digests,
                ledger=self.progress.ledger if update == epochs - 1 else None,
                buckets={**self._evaluated, **assembled.buckets} if update == epochs - 1 else {},
                uses=self._supply.uses,
                allocated=self._bench.collector.decided(step) if update == 0 else (),
            )
            self._commit(line)
            stats.append(
                merge_stats([self._bench.engine.trainer.forward_backward(batch, objective) for batch in batches])
            )
            results.append(self._bench.engine.trainer.optim_step())
        self._evaluated.clear()
        self._supply.used(stage, assembled, rollouts=groups)
        return Trained(
            assembled=assembled,
            batches=tuple(batches),
            results=tuple(results),
            stats=merge_stats(stats),
            first_stats=stats[0],
        )

    def _commit(self, line: PlanLine) -> None:
        """Make the plan durable before the update, or check that a retrained step plans the same."""
        known = self._planned.get((line.step, line.update))
        if known is None:
            self._plans.append(line)
            return
        if replace(known, head=line.head, ledger=line.ledger) != line or not _closed_alike(known.ledger, line.ledger):
            raise AlteredError(
                f"step {line.step}, update {line.update}: the records give another plan than plan.jsonl holds; "
                "`kifu audit` names the record that was changed"
            )
        if known.ledger is not None:  # what was in flight then depended on the clock; the figures on record stand
            self.progress.ledger = known.ledger
            self._bench.books.settle(known.ledger.closing)

    async def _publish(self, weights: Weights) -> None:
        self.progress.digest = await asyncio.to_thread(self._bench.keep, weights)
        self.progress.version = weights.version
        await self._bench.engine.sampler.load(weights)

    async def _change_stage(self, stage: Stage) -> None:
        """Bring the engine up again with the stage's optimizer, from the weights it begins with.

        Those of an earlier stage are published anew, under the next number.
        """
        initial = self._bench.kept(self.progress.version)
        if stage.start is not None:
            source = self._supply.ended_with(stage.start, now=initial.version)
            initial = replace(self._bench.kept(source), version=initial.version + 1)
        await stop_listening(self._bench)
        engine = await asyncio.to_thread(self._bench.bring_up, stage, initial=initial)
        first = await asyncio.to_thread(engine.trainer.publish)
        assert first.version == initial.version, "an engine's first publish is what it started from"
        if stage.start is not None:
            await self._publish(first)

    async def _evaluate(self) -> None:
        """Evaluate the present version; a second time the same rollouts answer, and the ledger has them once."""
        layer, version = self._bench.experiment.evaluation, self.progress.version
        self._observer.evaluating(version, split=layer.split, tasks=layer.tasks)
        attempts = self._bench.evaluator.evaluation_groups(
            version,
            split=layer.split,
            tasks=layer.tasks,
            tries=layer.tries,
            have={**self._bench.recorded(version), **self._last_evaluated},
        )
        groups = await self._wait(asyncio.ensure_future(attempts))
        members = [member for group in groups for member in group.members]
        self._last_evaluated = {member.id: member for member in members}
        if version not in self._evaluated_versions:
            self._evaluated_versions.add(version)
            tokens = sum(member.sampled_tokens for member in members)
            ledger = self.progress.ledger.start(attempts=len(members), tokens=tokens)
            self.progress.ledger = ledger.close(Bucket.EVALUATION, attempts=len(members), tokens=tokens)
            self._evaluated.update((member.id, Bucket.EVALUATION) for member in members)
        self._observer.evaluated(
            version, members, split=layer.split, data=self._supply.learned_from(self.progress.step)
        )

    def _stalled(self, assembled: Assembled, members: Collection[Trajectory], stage: Stage) -> None:
        from_records = stage.stored is not None
        over = {cost for member in members for cost in limits_exceeded(member, stage.rules.charges)}
        is_solved = not from_records and not over and all(judged_success(member) is True for member in members)
        learnt = assembled.denominators.tokens if from_records else assembled.informative
        if learnt or is_solved or stage.demonstrations is not None or stage.fits is not None:
            self.progress.stalled = 0
            return
        self.progress.stalled += 1
        patience = stage.update.patience
        if self.progress.stalled >= patience and from_records:
            raise NoSignalError(
                f"{patience} steps in a row in which `{stage.method}` found nothing to learn in the stored records. "
                "Give it records with several attempts at a task that were not all judged alike"
            )
        silent = [item.outcome for item in members if not item.turns]
        if self.progress.stalled >= patience and len(silent) == len(members) > 0:
            raise NoSignalError(
                f"{patience} steps in a row in which the policy wrote no turn: {silent[0].reason}, {silent[0].detail}. "
                "Where the opening fills the context, raise environment.collector_limits.tokens"
            )
        if self.progress.stalled >= patience:
            raise NoSignalError(
                f"{patience} steps in a row without an informative group: every attempt at a task earned the same. "
                f"{_over_limits(sorted(over))}"
                "Raise update.group_size, choose easier tasks, warm-start on demonstrations, raise the temperature "
                "or give the members of a group different ones (policy.decoding.temperature = [0.8, 1.0, 1.2]), "
                "constrain decoding, or add a checkable partial reward."
            )

    def checkpoint(self) -> None:
        """Write the trainer's state as of the last closed step; inside a step's updates there is none."""
        if self._updating:
            return
        ledger = self.progress.ledger
        mark = Mark(
            step=self.progress.step,
            version=self.progress.version,
            weights_digest=self.progress.digest,
            manifest_head=self._store.head,
            plan_head=self._plans.head,
            effects_seal=durable_seal(self._bench.effects),
            stalled=self.progress.stalled,
            ledger=Ledger(step=ledger.step, opening=ledger.opening).to_json(),  # evaluations are entered again
        )
        save_checkpoint(self._bench.folder.checkpoints, mark, self._bench.engine.trainer.state())
        release_free_memory()


def _over_limits(costs: Sequence[Cost]) -> str:
    """Advice where attempts counted as failures for what they cost."""
    if not costs:
        return ""
    fields = ", ".join(f"credit.costs.{cost}.limit" for cost in costs)
    return f"Attempts went over {fields} and counted as failures: raise the limit, or charge the cost as a reward. "


def _closed_alike(one: Ledger | None, two: Ledger | None) -> bool:
    """Whether two ledgers closed the same into the same buckets."""
    if one is None or two is None:
        return one is two
    return (dict(one.closed), dict(one.times_used)) == (dict(two.closed), dict(two.times_used))
