"""What an update gets besides the rollouts of its step: replayed successes, logprobs under other weights.

Everything here is a function of the records and the plan, so a resumed run is supplied the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kifu.credit import SuccessReplay
from kifu.records import Group, Purpose, Trajectory
from kifu.records.plan import PlanLine
from kifu.records.reader import RunReader
from kifu.training.assemble import Assembled
from kifu.training.bench import Bench
from kifu.training.borrowed import Borrowed, Scored
from kifu.training.layers import Stored
from kifu.training.prepare import Stage
from kifu.training.replay import SuccessBuffer
from kifu.training.reward_model import FittedModel, fit_reward_model
from kifu.training.scoring import score_records, scorer_of
from kifu.training.stored import StoredGroups, read_groups, stored_layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Supplied:
    """What `assemble` is given."""

    groups: Sequence[Group]
    borrowed: Borrowed
    scored: Scored


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
        self._data = next((stage.stored for stage in bench.stages if stage.stored is not None), None)
        self._stored: StoredGroups | None = None
        self._model: FittedModel | None = None
        self._buffers: dict[int, SuccessBuffer] = {}
        self._held: int | None = None

    @property
    def uses(self) -> Mapping[str, int]:
        """How often each trajectory was used before the present step."""
        return self._uses

    @property
    def stored(self) -> tuple[Trajectory, ...]:
        """Every record of other runs that this one learns from."""
        return () if self._data is None else self._groups(self._data).records

    def stored_groups(self, stage: Stage, data: Stored, *, step: int) -> list[Group]:
        """The groups of a step that trains on records of other runs."""
        prompts = self._bench.experiment.update.prompts_per_step
        return self._groups(data).at(step - stage.first, prompts=prompts)

    @property
    def reward_model_facts(self) -> Mapping[str, float | None]:
        """How the run's reward model was fitted; empty without one."""
        found = self._model
        return {} if found is None else {"pairs": found.pairs, "held_out": found.held_out, "accuracy": found.accuracy}

    def _reward_model(self) -> FittedModel:
        if self._model is None:
            layer, data = self._bench.experiment.credit.reward_model, stored_layer(self._bench.experiment)
            assert layer is not None
            assert data is not None
            self._model = fit_reward_model(self._groups(data).groups, layer, seed=self._bench.seed)
        return self._model

    def _groups(self, data: Stored) -> StoredGroups:
        if self._stored is None:
            self._stored = read_groups(
                data,
                self._bench.folder.root,
                like=self._bench.prepared.setting.provenance,
                seed=self._bench.seed,
                own=len(self._bench.stages) > 1,
            )
        return self._stored

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
            borrowed = Borrowed(records={member.id: member for group in groups for member in group.members})
        if isinstance(plan.data, SuccessReplay):
            groups, borrowed = self._buffer(stage, plan.data, step).replay(groups, step=step)
            self._bench.fetch_bitmaps(borrowed.records.values())
            present = list(borrowed.records.values()) if plan.data.ratio == "one" else []
        members = [member for group in groups for member in group.members] if plan.needs_reference else []
        if members:
            self._hold(stage, step=step, version=version)
        if plan.needs_reward_model:
            members = [member for group in groups for member in group.members if member.turns]
            model = self._reward_model().score(members)
        engine, max_nodes = self._bench.engine, self._bench.machine.max_nodes
        scored = Scored(
            reference=score_records(members, engine=engine, max_nodes=max_nodes, reference=True) if members else {},
            model=model,
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
            buffer = SuccessBuffer(rule, rules=self._bench.prepared.rules, seed=self._bench.seed)
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
