"""A step's budget of rollouts given to tasks and to visited turns, by predicted success (TRACE, arXiv 2606.11119).

Predictions are functions of the records of earlier steps, so a run that goes on from its record allocates the same.
They allocate and are never a baseline.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kifu.credit.branching import Allocated
from kifu.credit.budget import allocate_prefixes, allocate_roots
from kifu.envs import Task
from kifu.records import Group, Purpose, Trajectory
from kifu.records.plan import Allocation
from kifu.records.reader import RunReader
from kifu.rollout import Departure
from kifu.training.experiment.stages import Stage

CHOSEN_BY = "expected disagreement"


class _Outcome(NamedTuple):
    """One judged rollout."""

    task: str
    family: str
    success: bool


@dataclass(slots=True, kw_only=True)
class Allocator:
    """Decides for one stage, and keeps what it decided for the plan."""

    rule: Allocated
    first: int
    """Step the stage begins with."""
    lag: int
    """Steps that may be collected ahead: what they found is not looked at."""
    read: Callable[[range], Iterable[Trajectory]]
    """Training rollouts of some steps, from the record."""
    _outcomes: dict[int, list[_Outcome]] = field(default_factory=dict)
    _decided: dict[int, list[Allocation]] = field(default_factory=dict)

    def roots(self, step: int, tasks: Sequence[Task]) -> tuple[int, ...]:
        """Whole rollouts of every candidate task of a step."""
        success = self._predicted(step, tasks)
        found = allocate_roots(success, budget=self.rule.roots, rollouts=self.rule.attempts)
        self._decided[step] = [
            Allocation(group=group, task=task.id, success=predicted, rollouts=rollouts)
            for group, (task, predicted, rollouts) in enumerate(zip(tasks, success, found, strict=True))
        ]
        return found

    def prefixes(self, step: int, groups: Sequence[Group]) -> dict[int, list[Departure]]:
        """By group, the turns of its rollouts that others go on from; one as often as rollouts are given to it."""
        visits = [
            (member, turn.index)
            for group in groups
            for member in group.members
            if not member.outcome.infra_error and _judged(member) is not None
            for turn in member.turns[1:]
        ]
        before = {one.task: one.success for one in self._decided[step]}
        success = [self._continued(member, turn, groups, before=before[member.task.id]) for member, turn in visits]
        seen = [float(bool(_judged(member))) for member, _ in visits]
        found: dict[int, list[Departure]] = {}
        counts = allocate_prefixes(seen, success, budget=self.rule.budget - self.rule.roots)
        for (member, turn), predicted, rollouts in zip(visits, success, counts, strict=True):
            if not rollouts:
                continue
            group = member.key.group
            departure = Departure(parent=member, turn=turn, chosen_by=CHOSEN_BY)
            found.setdefault(group, []).extend([departure] * rollouts)
            self._decided[step].append(
                Allocation(
                    group=group,
                    task=member.task.id,
                    success=predicted,
                    rollouts=rollouts,
                    parent=member.id,
                    turn=turn,
                )
            )
        return found

    def remember(self, step: int, groups: Iterable[Group]) -> None:
        """Take in how the rollouts of a step ended."""
        self._outcomes[step] = list(_outcomes(member for group in groups for member in group.members))

    def decided(self, step: int) -> tuple[Allocation, ...]:
        """What was decided for a step."""
        return tuple(self._decided.pop(step, ()))

    def _predicted(self, step: int, tasks: Sequence[Task]) -> list[float]:
        """Success of each task: its own rate, drawn towards that of its family, that towards the rate of all."""
        known = self._before(step)
        overall = self._rate(known, towards=0.5)
        found = []
        for task in tasks:
            family = self._rate([one for one in known if one.family == task.family], towards=overall)
            found.append(self._rate([one for one in known if one.task == task.id], towards=family))
        return found

    def _continued(self, member: Trajectory, turn: int, groups: Sequence[Group], *, before: float) -> float:
        """Success from the state before a turn: the rate of this step's rollouts that were there."""
        here = member.turns[turn].kept_state
        passed = [
            other
            for group in groups
            for other in group.members
            if other.task.id == member.task.id
            and any(seen.kept_state is not None and seen.kept_state == here for seen in other.turns)
        ]
        return self._rate(list(_outcomes(passed)), towards=before)

    def _rate(self, known: Sequence[_Outcome], *, towards: float) -> float:
        return (sum(one.success for one in known) + self.rule.prior * towards) / (len(known) + self.rule.prior)

    def _before(self, step: int) -> list[_Outcome]:
        wanted = range(self.first, step - self.lag)
        missing = [at for at in wanted if at not in self._outcomes]
        if missing:
            items = list(self.read(range(missing[0], missing[-1] + 1)))
            for at in missing:
                self._outcomes[at] = list(_outcomes(item for item in items if item.key.step == at))
        return [one for at in wanted for one in self._outcomes[at]]


def allocator_of(stage: Stage, root: Path) -> Allocator | None:
    """The allocator of a stage of the run in ``root``; None where every task has equally many rollouts."""
    rule = stage.algorithm.plan.rollout
    if not isinstance(rule, Allocated):
        return None

    def read(steps: range) -> list[Trajectory]:
        records = RunReader(root).trajectories()
        return [item for item in records if item.key.purpose is Purpose.TRAIN and item.key.step in steps]

    return Allocator(rule=rule, first=stage.first, lag=stage.update.max_age, read=read)


def _outcomes(members: Iterable[Trajectory]) -> Iterable[_Outcome]:
    for member in members:
        success = _judged(member)
        if success is not None:
            yield _Outcome(member.task.id, member.task.family, success)


def _judged(member: Trajectory) -> bool | None:
    return None if member.verdict is None else member.verdict.success
