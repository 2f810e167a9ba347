"""Groups come back in order whatever finishes first; what the record holds is not run again."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from kifu.engines import build_engine
from kifu.envs import Task
from kifu.envs.suites.key_door import KeyDoor
from kifu.errors import StorageError
from kifu.records import Trajectory, content_digest
from kifu.records.ledger import Count
from kifu.training.collection.books import Books
from kifu.training.collection.collect import Collector
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import Loaded

Load = Callable[..., Loaded]


class Dawdling(KeyDoor):
    """Takes its time, and counts who is alive."""

    alive = most = 0
    counting = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        with self.counting:
            type(self).alive += 1
            type(self).most = max(self.most, self.alive)

    def reset(self, task: Task, seed: int) -> str:
        """Reset after up to 10 ms."""
        time.sleep(random.SystemRandom().uniform(0, 0.01))
        return super().reset(task, seed)

    def close(self) -> None:
        """Leave."""
        with self.counting:
            type(self).alive -= 1


def collector(prepared: Prepared, accepted: list[str], *, fails_at: int = -1) -> Collector:
    async def accept(trajectory: Trajectory) -> None:
        await asyncio.sleep(random.SystemRandom().uniform(0, 0.01))
        accepted.append(trajectory.id)
        if len(accepted) == fails_at:
            raise StorageError("the disk is gone")

    engine = build_engine("recurrent", prepared.engine_spec(prepared.stages[0], seed=0))
    return Collector(
        setting=replace(prepared.setting, environment=Dawdling),
        sampler=engine.sampler,
        tasks=prepared.task_source(0),
        accept=accept,
        seed=0,
        books=Books(),
    )


async def collect(load: Load, have: Mapping[str, Trajectory], accepted: list[str]) -> list[Trajectory]:
    found = collector(prepare(load()), accepted)
    groups = await found.training_groups(3, prompts=3, size=4, first=9, have=have)
    started, held = found.books.close([member.id for group in groups for member in group.members])
    assert started == Count(attempts=12, tokens=sum(m.sampled_tokens for group in groups for m in group.members))
    assert held == Count()
    return [member for group in groups for member in group.members]


async def test_members_stand_in_order_and_do_not_depend_on_it(load: Load) -> None:
    accepted: list[str] = []
    first = await collect(load, {}, accepted)
    again = await collect(load, {}, [])

    assert [item.id for item in first] == [f"train/s0/t00003/g{g:04d}/m{m:03d}/a0" for g in range(3) for m in range(4)]
    assert [item.task.id for item in first[::4]] == ["key_door/9", "key_door/10", "key_door/11"]
    assert sorted(accepted) == [item.id for item in first]
    assert [content_digest(item) for item in first] == [content_digest(item) for item in again]
    assert Dawdling.alive == 0


async def test_no_more_run_at_once_than_contexts_are_kept(load: Load) -> None:
    """And what they write does not depend on it."""
    first = await collect(load, {}, [])
    Dawdling.most = 0

    found = replace(collector(prepare(load()), []), at_once=2)
    groups = await found.training_groups(3, prompts=3, size=4, first=9, have={})

    assert Dawdling.most == 2
    assert [content_digest(item) for group in groups for item in group.members] == [content_digest(i) for i in first]


async def test_what_the_record_holds_is_not_run_again(load: Load) -> None:
    first = await collect(load, {}, [])
    accepted: list[str] = []

    again = await collect(load, {item.id: item for item in first[:5]}, accepted)

    assert sorted(accepted) == [item.id for item in first[5:]]
    assert again[:5] == first[:5]
    assert [content_digest(item) for item in again] == [content_digest(item) for item in first]


async def test_a_storage_failure_cancels_the_rest_and_leaves_nobody_behind(load: Load) -> None:
    accepted: list[str] = []
    found = collector(prepare(load()), accepted, fails_at=2)

    with pytest.raises(StorageError, match="the disk is gone"):
        await found.training_groups(0, prompts=3, size=4, first=0, have={})

    settled = len(accepted)
    await asyncio.sleep(0.05)
    assert len(accepted) == settled
    assert Dawdling.alive == 0


async def test_evaluation_takes_the_first_tasks_of_the_split_under_its_version(load: Load) -> None:
    found = collector(prepare(load()), [])

    groups = await found.evaluation_groups(7, split="held_out", tasks=2, tries=3, have={})

    assert [group.task.id for group in groups] == ["key_door/5000000", "key_door/5000001"]
    assert [item.id for item in groups[1].members] == [f"evaluation/s0/t00007/g0001/m{m:03d}/a0" for m in range(3)]


async def test_demonstrations_are_groups_of_their_own(load: Load) -> None:
    prepared = prepare(load())
    found = collector(prepared, [])

    def task_at(index: int) -> Task:
        return next(iter(KeyDoor.tasks("demonstration", 10_000_000 + index)))

    groups = await found.demonstrations(
        1, traces=3, first=30, task_at=task_at, demonstrate=prepared.demonstrator(0.0), have={}
    )

    assert [len(group.members) for group in groups] == [1, 1, 1]
    assert [group.members[0].environment.seed for group in groups] == [10_000_030, 10_000_031, 10_000_032]
    assert [group.members[0].reward for group in groups] == [1.0] * 3
