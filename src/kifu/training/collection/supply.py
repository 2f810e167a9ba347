"""What an update gets besides the rollouts of its step: replayed successes, logprobs under other weights.

Everything here is a function of the records and the plan, so a resumed run is supplied the same.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kifu.credit import SuccessReplay
from kifu.records import Group, Purpose, Trajectory
from kifu.records.plan import PlanLine
from kifu.records.reader import RunReader
from kifu.training.collection.bench import Bench
from kifu.training.collection.refresher import Refresher
from kifu.training.experiment.credit_layers import StageModel
from kifu.training.experiment.layers import StageRecords, Stored
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.stored import StoredGroups, read_attempts, read_groups, stored_names
from kifu.training.update.assemble import Assembled
from kifu.training.update.borrowed import Borrowed, Scored
from kifu.training.update.refreshed_negatives import purposes_made
from kifu.training.update.reward_model import FittedModel
from kifu.training.update.scorers import Scorers
from kifu.training.update.scoring import score_records, scorer_of
from kifu.training.update.success_buffer import SuccessBuffer
from kifu.training.update.turn_feedback import paid_by_signals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Supplied:
    """What `assemble` is given."""

    groups: Sequence[Group]
    borrowed: Borrowed
    scored: Scored


def read_stored(data: Stored | StageRecords, prepared: Prepared, *, root: Path, seed: int) -> StoredGroups:
    """The groups that a run was given, or that an earlier stage of it made.

    Args:
        data: which of them.
        prepared: the experiment.
        root: the run folder, with the copies.
        seed: of the run.
    """
    if isinstance(data, StageRecords):
        [source] = [stage for stage in prepared.stages if stage.name == data.stage]
        return read_attempts(data, root, steps=range(source.first, source.stop), seed=seed)
    is_trained_on = data in [stage.stored for stage in prepared.stages]
    return read_groups(
        data,
        root,
        names=stored_names(prepared.experiment),
        like=prepared.setting.provenance,
        environment=prepared.environment,
        seed=seed,
        own=purposes_made(prepared.stages) if is_trained_on else frozenset(),
    )


class Supply:
    """Keeps what lasts from step to step.

    Args:
        bench: engine, records and weights of the run.
        planned: lines of the plan that are on record.
        step: the step the run goes on at.
    """

    def __init__(self, bench: Bench, *, planned: Sequence[PlanLine], step: int) -> None:
        self._bench = bench
        self._begins = {line.step: line.version for line in planned if line.update == 0}
        before = (row for line in planned if line.step < step for row in line.rows)
        self._uses = {row.trajectory: row.times_used for row in before}
        self._stored: dict[Stored | StageRecords, StoredGroups] = {}
        self.scorers = Scorers(bench)
        self._buffers: dict[int, SuccessBuffer] = {}
        self._held: int | None = None
        self._refresher = Refresher(bench)

    @property
    def uses(self) -> Mapping[str, int]:
        """How often each trajectory was used before the present step."""
        return self._uses

    def learned_from(self, step: int) -> tuple[Trajectory, ...]:
        """Every record that the policy learns from without having sampled it for that.

        Args:
            step: those of an earlier stage count from the step on that learns from them.
        """
        layers = dict.fromkeys(
            stage.stored
            for stage in self._bench.stages
            if isinstance(stage.stored, Stored) or (stage.stored is not None and step >= stage.first)
        )
        return tuple(record for layer in layers for record in self._groups(layer).records)

    def stored_groups(self, stage: Stage, data: Stored | StageRecords, *, step: int) -> list[Group]:
        """The groups of a step that trains on records of other runs or of an earlier stage."""
        return self._groups(data).at(step - stage.first, prompts=stage.update.prompts_per_step)

    async def refreshed_groups(self, stage: Stage, data: Stored | StageRecords, *, step: int) -> list[Group]:
        """Experts on record, each with what the present policy does in one of its states."""
        return await self._refresher.groups(stage, await asyncio.to_thread(self._groups, data), step=step)

    def sampled_here(self, stage: Stage, item: Trajectory, *, step: int) -> bool:
        """Whether a member of a step's groups was sampled by it, not taken from elsewhere."""
        key = item.key
        return stage.stored is None or (
            stage.refreshes and (key.purpose, key.seed, key.step) == (Purpose.TRAIN, self._bench.seed, step)
        )

    def begin(self, step: int, version: int) -> None:
        """A step starts from a version."""
        self._begins[step] = version

    def ended_with(self, name: str, *, now: int) -> int:
        """The version a stage ended with; ``base``: the one the run began with.

        Args:
            name: of a stage before the present step.
            now: the version there is, which is the answer where the stage ends with the step before.
        """
        stages = {stage.name: at for at, stage in enumerate(self._bench.stages)}
        if name not in stages:
            return 0
        following = self._bench.stages[stages[name] + 1]
        begun = self._begins.get(following.first)
        return now if begun is None else begun - (following.start is not None)

    def _reward_model(self, stage: Stage) -> FittedModel:
        source = stage.credit.reward_model
        if isinstance(source, StageModel):
            return self.scorers.reward_model(source.stage)
        assert source is not None
        return self.scorers.given(source, self._groups(Stored(runs=source.runs)).groups)

    def _groups(self, data: Stored | StageRecords) -> StoredGroups:
        if data not in self._stored:
            self._stored[data] = read_stored(
                data, self._bench.prepared, root=self._bench.folder.root, seed=self._bench.seed
            )
        return self._stored[data]

    def give(self, stage: Stage, groups: Sequence[Group], *, step: int, version: int) -> Supplied:
        """Replay successes where the method says so, and compute the logprobs it needs.

        Args:
            stage: of the step.
            groups: rollouts of the step.
            step: of the run.
            version: of the weights that begin the step.
        """
        plan, borrowed, present = stage.algorithm.plan, Borrowed(), list[Trajectory]()
        model: dict[str, float] = {}
        if stage.stored is not None:
            members = [member for group in groups for member in group.members]
            lent = {item.id: item for item in members if not self.sampled_here(stage, item, step=step)}
            borrowed = Borrowed(records=lent)
        if isinstance(plan.data, SuccessReplay):
            groups, borrowed = self._buffer(stage, plan.data, step).replay(groups, step=step)
            self._bench.fetch_bitmaps(borrowed.records.values())
            present = list(borrowed.records.values()) if plan.data.ratio == "one" else []
        members = [member for group in groups for member in group.members] if plan.needs_reference else []
        if members:
            self._hold(stage, step=step, version=version)
        if plan.needs_reward_model:
            members = [member for group in groups for member in group.members if member.turns]
            model = self._reward_model(stage).score(members)
        engine, max_nodes = self._bench.engine, self._bench.machine.max_nodes
        scored = Scored(
            reference=score_records(members, engine=engine, max_nodes=max_nodes, reference=True) if members else {},
            model=model,
            paid=paid_by_signals(stage, groups, model_of=self.scorers.process_model),
            present=score_records(present, engine=engine, max_nodes=max_nodes, reference=False) if present else {},
        )
        return Supplied(groups=groups, borrowed=borrowed, scored=scored)

    def used(self, stage: Stage, assembled: Assembled, *, rollouts: Sequence[Group]) -> None:
        """A step is over: count uses, and remember the successes of its own rollouts."""
        for name in {row.trajectory for row in assembled.rows}:
            used = stage.algorithm.plan.epochs * assembled.times.get(name, 1)
            self._uses[name] = self._uses.get(name, 0) + used
        if stage.first in self._buffers:
            self._buffers[stage.first].remember(member for group in rollouts for member in group.members)

    def _buffer(self, stage: Stage, rule: SuccessReplay, step: int) -> SuccessBuffer:
        """The buffer of a stage; one that is asked for late is filled from the record."""
        if stage.first not in self._buffers:
            buffer = SuccessBuffer(rule, rules=stage.rules, seed=self._bench.seed)
            if step > stage.first:
                records = RunReader(self._bench.folder.root).trajectories()
                before = range(stage.first, step)
                buffer.remember(
                    item for item in records if item.key.purpose is Purpose.TRAIN and item.key.step in before
                )
            self._buffers[stage.first] = buffer
        return self._buffers[stage.first]

    def _hold(self, stage: Stage, *, step: int, version: int) -> None:
        """Give the trainer the weights the stage began with, once."""
        if self._held == stage.first:
            return
        first = version if step == stage.first else self._begins[stage.first]
        scorer_of(self._bench.engine).hold(self._bench.kept(first))
        self._held = stage.first
