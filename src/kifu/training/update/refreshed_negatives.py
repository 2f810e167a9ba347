"""Negatives that are sampled: which, in which states of experts on record, and what a step trains on with them.

What is sampled, where and when is a function of the stored records and the step alone, so a run that goes on from its
record samples the same, and whoever reads the run deals out the same pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kifu.credit import RefreshedPairs
from kifu.records import Group, Purpose, Trajectory
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.stored import StoredGroups

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
