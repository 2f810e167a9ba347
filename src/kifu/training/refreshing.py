"""Negatives that are sampled: one turn each, by the present policy, in states that experts on record were in.

What is sampled, where and when is a function of the stored records and the step alone, so a run that goes on from its
record samples the same, and whoever reads the run deals out the same pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kifu.credit import RefreshedPairs
from kifu.envs import SnapshotKind
from kifu.errors import ExperimentError
from kifu.records import Group, Purpose, Trajectory
from kifu.records.blobs import BlobStore
from kifu.records.reader import RunReader
from kifu.rollout import Branchable, Departure, Setting
from kifu.training.bench import Bench
from kifu.training.gathering import all_of
from kifu.training.stages import Stage
from kifu.training.stored import StoredGroups

CHOSEN_BY = "expert state"
Found = Mapping[tuple[int, int], Sequence[Trajectory]]
"""Rollouts by the place they were sampled at: step of the run and group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dealt:
    """What one place of a step trains on, short of the rollouts."""

    group: Group
    """The expert alone, or the stored group where it holds none."""
    turn: int | None = None
    """The expert's turn before which actions are sampled; None in the warm-up and without such a turn."""
    sampled_at: tuple[int, int] | None = None
    """Step and group of the rollouts from there: this place, or an earlier one of the round."""

    @property
    def expert(self) -> Trajectory:
        """Whose state it is."""
        return self.group.members[0]


def deal(stage: Stage, stored: StoredGroups, *, step: int) -> list[Dealt]:
    """The places of a step, in order.

    Pass after pass over the stored groups, every expert offers its next state. A round remembers where a state came up
    first.

    Args:
        stage: with its method, whose data are `RefreshedPairs`.
        stored: the groups it was given.
        step: of the run.
    """
    rule, at = rule_of(stage), step - stage.first
    found = _experts(stage, rule, stored, at=at)
    if at < rule.warm_up:
        return [replace(item, turn=None) for item in found]
    first: dict[tuple[str, int], tuple[int, int]] = {}
    for earlier in range(at - (at - rule.warm_up) % rule.round_steps, at + 1):
        for place, item in enumerate(_experts(stage, rule, stored, at=earlier)):
            if item.turn is not None:
                first.setdefault((item.expert.id, item.turn), (stage.first + earlier, place))
    return [item if item.turn is None else replace(item, sampled_at=first[item.expert.id, item.turn]) for item in found]


def _experts(stage: Stage, rule: RefreshedPairs, stored: StoredGroups, *, at: int) -> list[Dealt]:
    prompts, found = stage.update.prompts_per_step, []
    number, _ = stored.pass_of(at, prompts=prompts)
    for group in stored.at(at, prompts=prompts):
        experts = [item for item in group.members if _is_expert(item, rule)]
        if not experts:
            found.append(Dealt(group=group))
            continue
        expert = min(experts, key=lambda item: item.id)
        turns = [turn.index for turn in expert.turns if turn.action.executed and turn.state_before is not None]
        found.append(Dealt(group=replace(group, members=(expert,)), turn=turns[number % len(turns)] if turns else None))
    return found


def _is_expert(item: Trajectory, rule: RefreshedPairs) -> bool:
    is_whole = not item.outcome.infra_error and not item.outcome.truncated
    return is_whole and item.reward is not None and item.reward >= rule.min_reward


def with_rollouts(dealt: Iterable[Dealt], found: Found) -> list[Group]:
    """Every group with the rollouts from its expert's state."""
    return [
        item.group
        if item.sampled_at is None
        else replace(
            item.group,
            members=tuple(sorted((item.expert, *found.get(item.sampled_at, ())), key=lambda one: one.key)),
        )
        for item in dealt
    ]


def on_record(
    records: Iterable[Trajectory], places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Sequence[Trajectory]]:
    """The training rollouts of some places, in member order."""
    found: dict[tuple[int, int], list[Trajectory]] = {place: [] for place in places}
    for item in records:
        if item.key.purpose is Purpose.TRAIN and (place := (item.key.step, item.key.group)) in found:
            found[place].append(item)
    return {place: sorted(items, key=lambda item: item.key) for place, items in found.items()}


def rule_of(stage: Stage) -> RefreshedPairs:
    """What the stage's method says of its data."""
    rule = stage.algorithm.plan.data
    assert isinstance(rule, RefreshedPairs), "asked only where the method samples negatives"
    return rule


def purposes_made(stages: Sequence[Stage]) -> frozenset[str]:
    """Purposes of the rollouts whose ids those of stored records must not be."""
    shows = {str(Purpose.DEMONSTRATION) for stage in stages if stage.demonstrations is not None}
    return frozenset(shows | {str(Purpose.TRAIN) for stage in stages if stage.samples})


class Refresher:
    """Samples what a step lacks; what earlier steps of the round sampled is kept, or read from the record.

    Args:
        bench: samples, and holds the record.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._found: dict[tuple[int, int], Sequence[Trajectory]] = {}

    async def groups(self, stage: Stage, stored: StoredGroups, *, step: int) -> list[Group]:
        """The groups of a step."""
        dealt = deal(stage, stored, step=step)
        wanted = {item.sampled_at for item in dealt if item.sampled_at is not None}
        earlier = {place for place in wanted if place[0] < step} - set(self._found)
        if earlier:
            self._found |= on_record(RunReader(self._bench.folder.root).trajectories(), earlier)
        fresh = {item.sampled_at: item for item in dealt if item.sampled_at in wanted and item.sampled_at[0] == step}
        sampled = await all_of([self._sample(stage, item, group=group) for (_, group), item in fresh.items()])
        self._found |= dict(zip(fresh, sampled, strict=True))
        return with_rollouts(dealt, self._found)

    async def _sample(self, stage: Stage, item: Dealt, *, group: int) -> list[Trajectory]:
        rule, bench = rule_of(stage), self._bench
        assert item.turn is not None
        assert item.sampled_at is not None
        task = bench.prepared.task_of(item.expert)
        if task is None:
            raise ExperimentError(
                f"update.data.runs: the environment no longer makes task `{item.expert.task.id}` of {item.expert.id} "
                "from its seed, so no action can be sampled in its states"
            )
        departure = Departure(parent=item.expert, turn=item.turn, chosen_by=CHOSEN_BY, is_lent=True)
        step, _ = item.sampled_at
        states = BlobStore(bench.folder.blobs)
        setting = refreshing_setting(bench.collector.setting, rule, turn=item.turn, states=states)
        collector = replace(bench.collector, setting=setting, temperatures=())
        return await collector.branches(
            step, group=group, task=task, departures=[departure] * rule.samples, have=bench.recorded(step)
        )


def refreshing_setting(setting: Setting, rule: RefreshedPairs, *, turn: int, states: BlobStore) -> Setting:
    """The setting of the run with the method's sampling, for one turn; its state is reached by actions and checked."""
    top_p = None if rule.top_p == 1.0 else rule.top_p
    return replace(
        setting,
        sampling=replace(setting.sampling, temperature=rule.temperature, top_p=top_p, top_k=None, min_p=None),
        max_new_tokens=min(rule.max_tokens, setting.max_new_tokens),
        limits=replace(setting.limits, turns=turn + 1),
        branchable=Branchable(states=states, snapshot=SnapshotKind.REPLAY),
        records_value=False,
    )
