"""What a recorded step was given besides its own rollouts, read back from its plan."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from kifu.records import Group, Trajectory, as_floats
from kifu.records.plan import PlanLine
from kifu.records.reader import STORED, RunReader
from kifu.training.experiment.stages import Stage
from kifu.training.experiment.stored import StoredGroups
from kifu.training.update.borrowed import Borrowed, Scored
from kifu.training.update.refreshed_negatives import deal, on_record, with_rollouts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedStep:
    """Groups as they were credited, and what `assemble` was told of them."""

    groups: tuple[Group, ...]
    borrowed: Borrowed
    scored: Scored


def as_refreshed(stage: Stage, stored: StoredGroups, records: Iterable[Trajectory], *, step: int) -> PlannedStep:
    """The groups of a step that samples in states of stored records, dealt out again.

    Args:
        stage: of the step.
        stored: the groups it was given.
        records: of the run.
        step: of the run.
    """
    dealt = deal(stage, stored, step=step)
    places = {item.sampled_at for item in dealt if item.sampled_at is not None}
    groups = with_rollouts(dealt, on_record(records, places))
    sampled = {item.sampled_at for item in dealt if item.sampled_at is not None and item.sampled_at[0] == step}
    experts = {item.expert.id for item in dealt}
    lent = {
        item.id: item
        for group in groups
        for item in group.members
        if item.id in experts or item.branch is None or (item.key.step, item.key.group) not in sampled
    }
    return PlannedStep(groups=tuple(groups), borrowed=Borrowed(records=lent), scored=Scored())


def as_planned(folder: Path, line: PlanLine, own: Sequence[Group]) -> PlannedStep:
    """The groups of a step with replayed records in their places; records of other runs where it has no rollouts.

    Args:
        folder: the run folder.
        line: the first plan line of the step.
        own: groups of the step's own rollouts, in order; empty when it learned from records of others.
    """
    mine = {member.id: member for group in own for member in group.members}
    wanted = {row.trajectory for row in line.rows} - set(mine)
    lent = {item.id: item for item in _records(folder) if item.id in wanted} if wanted else {}
    replaced = {name: other for name, other in line.replaced.items() if other in lent}
    groups = [
        replace(group, members=tuple(lent.get(replaced.get(item.id, ""), item) for item in group.members))
        for group in own
    ]
    if not own:
        members = sorted(lent.values(), key=lambda item: item.key)
        for _, items in groupby(members, key=lambda item: (item.key.seed, item.key.step, item.key.group)):
            found = tuple(items)
            groups.append(Group(task=found[0].task, members=found))
    return PlannedStep(
        groups=tuple(groups),
        borrowed=Borrowed(
            records=lent, replaced=replaced, set_aside=tuple(mine[name] for name in replaced if name in mine)
        ),
        scored=Scored(
            reference={row.trajectory: as_floats(row.reference) for row in line.rows if row.reference},
            present={row.trajectory: as_floats(row.present) for row in line.rows if row.present},
            paid={row.trajectory: np.array(row.paid, dtype=np.float64) for row in line.rows if row.paid},
            model={row.trajectory: row.model_score for row in line.rows if row.model_score is not None},
        ),
    )


def _records(folder: Path) -> Iterator[Trajectory]:
    yield from RunReader(folder).trajectories()
    for place in sorted((folder / STORED).glob("*/records")):
        yield from RunReader(place.parent).trajectories(live=False)
