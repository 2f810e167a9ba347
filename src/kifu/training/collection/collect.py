"""Collecting groups: which rollouts a step needs, which the record already has, and the rest run concurrently."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kifu.credit.branching import Independent
from kifu.envs import Task
from kifu.envs.segments import next_segment
from kifu.policy import Sampler
from kifu.records import Group, Purpose, RolloutKey, Segment, TaskRef, Trajectory
from kifu.records.plan import Allocation
from kifu.rollout import Departure, Scoring, Script, Setting, run_rollout
from kifu.training.collection.allocation import Allocator
from kifu.training.collection.books import Books
from kifu.training.collection.branching import Attempt, Grower
from kifu.training.collection.concurrently import all_of
from kifu.training.collection.outside_rollouts import OutsideRollouts
from kifu.training.collection.refill import Refill
from kifu.training.collection.segments import Segments
from kifu.training.experiment.tasks import TaskSource

Accept = Callable[[Trajectory], Awaitable[None]]
"""Makes one trajectory durable; it is accepted when this returns."""

Demonstrate = Callable[[Task, int], Script]
"""(task, seed) to a demonstrator's script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a group stands in the run."""

    step: int
    group: int
    size: int
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collector:
    """Runs rollouts and hands each to ``accept`` before anybody may train on it."""

    setting: Setting
    sampler: Sampler
    tasks: TaskSource
    accept: Accept
    seed: int
    """Of the run."""
    books: Books
    segments: Segments | None = None
    """Of a continuing environment: where the rollouts of the step before were cut."""
    at_once: int = 1 << 30
    """Rollouts under way at most. More than the engine keeps contexts for would push each other out at every turn."""
    allocator: Allocator | None = None
    """Of a method that gives a step's budget of rollouts to tasks and turns."""
    refill: Refill | None = None
    """How training groups without a signal are made up for."""
    scoring: Scoring | None = None
    """What a model is asked about every finished training rollout before it is accepted."""
    grower: Grower = field(default_factory=lambda: Grower(plan=Independent(), vocabulary=0))
    """How groups come about."""
    temperatures: tuple[float, ...] = ()
    """What the members of a group take in turn instead of the setting's; empty: nothing."""
    outside: OutsideRollouts | None = None
    """Makes rollouts of an agent that is not kifu's own."""
    _places: asyncio.Semaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", asyncio.Semaphore(self.at_once))

    def decided(self, step: int) -> tuple[Allocation, ...]:
        """Where the budget of a step went; empty where every task has equally many rollouts."""
        return () if self.allocator is None else self.allocator.decided(step)

    async def training_groups(
        self, step: int, *, prompts: int, size: int, first: int, have: Mapping[str, Trajectory]
    ) -> list[Group]:
        """Groups of one step, in order; members that ``have`` holds (by id) are not run again.

        Args:
            step: step of the run.
            prompts: groups; those with a signal where they are made up for.
            size: attempts per group.
            first: place of the step's first task in the training order.
            have: accepted before, e.g. by a process that died.
        """
        if self.allocator is not None:
            return await self._allocated(self.allocator, step, prompts=prompts, first=first, have=have)

        async def one(group: int) -> Group:
            place = _Place(step=step, group=group, size=size, purpose=Purpose.TRAIN)
            if self.segments is None or size > 1:  # members of a group are compared, so they start from one state
                return await self._group(self.tasks.training(first + group), place, have=have)
            segment, state = await self.segments.following(step, group, begins=first == 0)
            task = self.tasks.training(first + group - prompts * segment.index)
            task = task if state is None else next_segment(task, state, index=segment.index)
            return await self._group(task, place, have=have, segment=segment)

        groups = await all_of([one(group) for group in range(prompts)])
        return groups if self.refill is None else await self._refilled(self.refill, groups, first=first, have=have)

    async def _allocated(
        self, rule: Allocator, step: int, *, prompts: int, first: int, have: Mapping[str, Trajectory]
    ) -> list[Group]:
        """Groups of the tasks that were chosen, then what goes on from turns of their rollouts."""
        tasks = [self.tasks.training(first + group) for group in range(prompts)]
        places = {
            group: _Place(step=step, group=group, size=size, purpose=Purpose.TRAIN)
            for group, size in enumerate(rule.roots(step, tasks))
            if size
        }
        roots = await all_of([self._group(tasks[group], place, have=have) for group, place in places.items()])
        departures = rule.prefixes(step, roots)

        async def grown(group: int, whole: Group) -> Group:
            attempt = self._attempt(tasks[group], places[group], have=have)
            leaving = enumerate(departures.get(group, ()), start=len(whole.members))
            branches = await all_of([attempt(member, departure) for member, departure in leaving])
            return replace(whole, members=(*whole.members, *branches))

        groups = await all_of([grown(group, whole) for group, whole in zip(places, roots, strict=True)])
        rule.remember(step, groups)
        return groups

    async def _refilled(
        self, rule: Refill, groups: list[Group], *, first: int, have: Mapping[str, Trajectory]
    ) -> list[Group]:
        """The groups of a step and those that make up for the ones without a signal."""
        wanted, key = len(groups), groups[0].members[0].key

        async def another(at: int, group: int) -> Group:
            place = _Place(step=key.step, group=group, size=len(groups[0].members), purpose=Purpose.TRAIN)
            return await self._group(self.tasks.training(at), place, have=have)

        for number in range(1, rule.rounds):
            missing, known = rule.missing(groups, wanted=wanted), len(groups)
            if not missing:
                break
            at = first + number * rule.stride
            groups += await all_of([another(at + more, known + more) for more in range(missing)])
        return groups

    async def evaluation_groups(
        self, version: int, *, split: str, tasks: int, tries: int, have: Mapping[str, Trajectory]
    ) -> list[Group]:
        """Attempts at the first ``tasks`` tasks of a split under the weights now loaded."""

        async def one(index: int) -> Group:
            task = self.tasks.evaluation(split, index)
            place = _Place(step=version, group=index, size=tries, purpose=Purpose.EVALUATION)
            return await self._group(task, place, have=have)

        return await all_of([one(index) for index in range(tasks)])

    async def branches(
        self, step: int, *, group: int, task: Task, departures: Sequence[Departure], have: Mapping[str, Trajectory]
    ) -> list[Trajectory]:
        """Training rollouts that begin at turns of records, as the members of one group."""
        place = _Place(step=step, group=group, size=len(departures), purpose=Purpose.TRAIN)
        attempt = self._attempt(task, place, have=have)
        return await all_of([attempt(member, departure) for member, departure in enumerate(departures)])

    async def demonstrations(
        self,
        step: int,
        *,
        traces: int,
        first: int,
        task_at: Callable[[int], Task],
        demonstrate: Demonstrate,
        have: Mapping[str, Trajectory],
    ) -> list[Group]:
        """Scripted traces, one a task; each a group of its own."""

        async def one(index: int) -> Group:
            task = task_at(first + index)
            key = RolloutKey(seed=self.seed, step=step, group=index, member=0, purpose=Purpose.DEMONSTRATION)
            found = await self._run(key, task, writer=demonstrate(task, task.seed), have=have)
            return Group(task=found.task, members=(found,))

        return await all_of([one(index) for index in range(traces)])

    async def _group(
        self,
        task: Task,
        place: _Place,
        *,
        have: Mapping[str, Trajectory],
        segment: Segment | None = None,
    ) -> Group:
        member = self._attempt(task, place, have=have, segment=segment)
        stream = f"{place.purpose}/s{self.seed}/t{place.step:05d}/g{place.group:04d}/branches"
        members = await self.grower.grow(member, size=place.size, stream=stream)
        return Group(task=TaskRef(id=task.id, family=task.family, split=task.split), members=tuple(members))

    def _attempt(
        self, task: Task, place: _Place, *, have: Mapping[str, Trajectory], segment: Segment | None = None
    ) -> Attempt:
        async def member(index: int, departure: Departure | None, /) -> Trajectory:
            key = RolloutKey(seed=self.seed, step=place.step, group=place.group, member=index, purpose=place.purpose)
            return await self._run(key, task, writer=self.sampler, have=have, segment=segment, departure=departure)

        return member

    def _setting(self, member: int) -> Setting:
        if not self.temperatures:
            return self.setting
        temperature = self.temperatures[member % len(self.temperatures)]
        return replace(self.setting, sampling=replace(self.setting.sampling, temperature=temperature))

    async def _run(
        self,
        key: RolloutKey,
        task: Task,
        *,
        writer: Sampler | Script,
        have: Mapping[str, Trajectory],
        segment: Segment | None = None,
        departure: Departure | None = None,
    ) -> Trajectory:
        async with self._places:
            self.books.begin(key.id)
            trajectory = have.get(key.id)
            if trajectory is None:
                script = writer if isinstance(writer, Script) else None
                setting = self._setting(key.member)
                if self.outside is not None:
                    trajectory = await self.outside.run(key, task, setting=setting, script=script)
                else:
                    trajectory = await run_rollout(
                        setting,
                        writer=writer,
                        key=key,
                        task=task,
                        segment=segment,
                        departure=departure,
                        scoring=None if script is not None else self.scoring,
                    )
                await self.accept(trajectory)
            self.books.accepted(trajectory)
        if segment is not None and self.segments is not None:
            self.segments.ended(trajectory)
        return trajectory
