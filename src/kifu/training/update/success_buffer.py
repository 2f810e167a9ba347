"""The buffer of successes: one record of an earlier step in place of a rollout where a whole group failed.

It holds nothing that the log does not: fed with the records of all steps before, in order, it is the same buffer.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from kifu.algorithms import outcome_returns
from kifu.credit import SuccessReplay, wants_replay
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules, read_episode
from kifu.records import Group, Purpose, Trajectory
from kifu.records.checks import pre_update_check
from kifu.training.update.borrowed import Borrowed


class SuccessBuffer:
    """Successes by task, first in first out.

    Args:
        rule: when a group is helped, and how much is kept.
        rules: how rewards become numbers.
        seed: of the run; with step and group it fixes every draw.
    """

    def __init__(self, rule: SuccessReplay, *, rules: RewardRules, seed: int) -> None:
        self._rule = rule
        self._rules = rules
        self._seed = seed
        self._kept: dict[str, deque[Trajectory]] = {}

    def kept(self, task: str) -> tuple[str, ...]:
        """Ids of the successes at a task, oldest first."""
        return tuple(item.id for item in self._kept.get(task, ()))

    def replay(self, groups: Sequence[Group], *, step: int) -> tuple[list[Group], Borrowed]:
        """Put one success in the place of the first member of every group that wants it.

        The draw is uniform. A record enters a step at most once: two groups at one task draw different ones.
        """
        found: list[Group] = []
        records: dict[str, Trajectory] = {}
        replaced: dict[str, str] = {}
        set_aside: list[Trajectory] = []
        for at, group in enumerate(groups):
            candidates = [item for item in self._kept.get(group.task.id, ()) if item.id not in records]
            if not candidates or not wants_replay(self._returns(group), self._rule):
                found.append(group)
                continue
            random = np.random.default_rng([self._seed, step, at])
            drawn, first = candidates[int(random.integers(len(candidates)))], group.members[0]
            found.append(replace(group, members=(drawn, *group.members[1:])))
            records[drawn.id], replaced[first.id] = drawn, drawn.id
            set_aside.append(first)
        return found, Borrowed(records=records, replaced=replaced, set_aside=tuple(set_aside))

    def remember(self, trajectories: Iterable[Trajectory]) -> None:
        """Take the successes among the rollouts of the steps that follow, as they were before any replay.

        Args:
            trajectories: in any order; they are taken in the order of their keys.
        """
        for item in sorted((item for item in trajectories if self._is_success(item)), key=lambda item: item.key):
            self._kept.setdefault(item.task.id, deque(maxlen=self._rule.capacity)).append(item)

    def _is_success(self, trajectory: Trajectory) -> bool:
        if trajectory.key.purpose is not Purpose.TRAIN or pre_update_check(trajectory):
            return False
        seen = read_episode(trajectory, self._rules)
        return isinstance(seen, Episode) and seen.outcome is not None and seen.outcome > self._rule.above

    def _returns(self, group: Group) -> list[float]:
        seen = [read_episode(member, self._rules) for member in group.members]
        return outcome_returns([item for item in seen if isinstance(item, Episode)], self._rules)
