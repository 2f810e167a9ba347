"""No amount of partial credit beats finishing: exactly where a world is finite, by agents that do a part elsewhere."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import islice, product

import pytest

from kifu.envs import ENVIRONMENTS, Environment, GuardedEnvironment, Reply, Snapshot, Task, tool
from kifu.envs.finishing import partial_credit
from kifu.envs.finite import explore
from kifu.envs.play import Episode, play, scripted
from kifu.envs.suites.key_door import BUDGET, KeyDoor, model
from kifu.records import StopReason, ToolCall, Verdict

CALLS = ("inspect", "pickup_red", "pickup_blue", "open_red", "open_blue", "finish")


def totals(weights: Mapping[str, float], budget: int) -> tuple[float, float]:
    """The most of an unfinished play and the least of a finished one, by playing every sequence of calls."""
    unfinished, finished = [0.0], list[float]()
    for door, names in product(("red", "blue"), product(CALLS, repeat=budget)):
        world, total = KeyDoor(), 0.0
        world.reset(Task(id=door, data={"door": door, "budget": budget}), 0)
        for name in names:
            if name not in world.allowed() or world.state.stop is not None:
                break
            reply = world.step(ToolCall(name=name))
            total += sum(weights.get(key, 0.0) * value for key, value in reply.rewards.items())
            paid = total + (world.verify().reward or 0.0)
            (finished if reply.stop is StopReason.SUCCESS else unfinished).append(paid)
    return max(unfinished), min(finished, default=math.inf)


@pytest.mark.parametrize(
    "weights",
    [{}, {"looked": 0.3}, {"clue": 0.9, "right_key": 0.2}, {"door_open": -0.5, "looked": -0.1}, {"clue": 1.5}],
)
@pytest.mark.parametrize("budget", [2, 3, 5])
def test_what_plays_are_paid_is_found_as_by_playing_them_all(weights: dict[str, float], budget: int) -> None:
    found = partial_credit(model(budget), weights)
    assert (found.unfinished, found.finished) == pytest.approx(totals(weights, budget))


def test_in_key_door_progress_paid_once_outbids_nothing_below_the_worth_of_the_end() -> None:
    """Key and door are on the way of every success, the clue is not: a guess finishes without it."""
    world = model()
    assert not partial_credit(world, {}).is_outbid
    for clue, rest in product((0.0, 0.5, 0.999), (0.0, 0.3, 1.0, 100.0)):
        assert not partial_credit(world, {"clue": clue, "right_key": rest, "door_open": rest}).is_outbid
    assert partial_credit(world, {"clue": 1.0}).is_outbid


def test_in_key_door_a_bonus_for_every_look_outbids_the_end_from_an_eighth_on() -> None:
    """Eight looks fill the budget; a guess finishes without any."""
    world = model()
    assert partial_credit(world, {"looked": 0.1}).unfinished == pytest.approx(0.1 * BUDGET)
    assert not partial_credit(world, {"looked": 1 / BUDGET - 1e-6}).is_outbid
    assert partial_credit(world, {"looked": 1 / BUDGET}).is_outbid


class Bell(Environment):
    """A bell to ring and a door to leave by."""

    def reset(self, task: Task, seed: int) -> str:
        self.is_gone = False
        return "inside"

    @tool
    def ring(self) -> Reply:
        """Ring the bell."""
        return Reply(text="inside", rewards={"rang": 1.0})

    @tool
    def leave(self) -> Reply:
        """Leave."""
        self.is_gone = True
        return Reply(text="outside", stop=StopReason.SUCCESS)

    def verify(self) -> Verdict:
        return Verdict(success=self.is_gone)

    def snapshot(self) -> Snapshot:
        return self.is_gone

    def restore(self, ref: Snapshot) -> None:
        self.is_gone = bool(ref)


def test_a_loop_that_pays_outbids_anything_and_one_that_costs_nothing_does_not() -> None:
    world = explore(Bell(), [Task(id="t")])
    found = partial_credit(world, {"rang": 0.01})
    assert (found.unfinished, found.finished, found.is_outbid) == (math.inf, 1.0, True)
    found = partial_credit(world, {"rang": -0.01})
    assert (found.unfinished, found.finished, found.is_outbid) == (0.0, -math.inf, True)
    assert not partial_credit(world, {}).is_outbid


def played(cls: type[Environment], task: Task, actions: Sequence[ToolCall | str]) -> Episode:
    async def one() -> Episode:
        guard = GuardedEnvironment(cls)
        try:
            return await play(guard, task, scripted(actions))
        finally:
            await guard.close()

    return asyncio.run(one())


def call(name: str, arg: str) -> ToolCall:
    return ToolCall(name=name, arguments={"arg": arg})


def parts(gold: Sequence[ToolCall | str]) -> list[Sequence[ToolCall | str]]:
    """Every beginning of the work, each step of it for ever, and the word that it is done."""
    return [*(gold[:at] for at in range(len(gold))), *([step] * 64 for step in gold[:-1]), ["done"]]


FALSE_ENDS: Mapping[str, Sequence[ToolCall | str]] = {
    "calc_tools": [call("answer", "0")],
    "key_door_text": [ToolCall(name="finish")],
    "python_tool": [call("python", "print(1)"), call("answer", "0")],
}


@pytest.mark.parametrize(("name", "count"), [("calc_tools", 24), ("key_door_text", 24), ("python_tool", 2)])
def test_a_part_of_the_work_is_paid_nothing(name: str, count: int) -> None:
    cls = ENVIRONMENTS[name]
    for task in islice(cls.tasks("train", 0), count):
        gold = cls.demonstrate(task, seed=task.seed)
        for actions in [*parts(gold), FALSE_ENDS[name]]:
            episode = played(cls, task, actions)
            assert (episode.verdict.reward, episode.components) == (0.0, {}), (task.id, actions)
        assert played(cls, task, gold).verdict.reward == 1.0


UNDONE: Sequence[Sequence[ToolCall | str]] = (
    ["done"],
    [ToolCall(name="done")],
    [call("bash", "cat logs/*; echo done"), ToolCall(name="done")],
    [call("bash", "touch logs/a.log other"), ToolCall(name="done")],
    [call("bash", "ls")] * 64,
)


def test_in_terminal_what_leaves_the_job_undone_is_paid_nothing_and_the_job_without_a_word_is_paid() -> None:
    cls = ENVIRONMENTS["terminal"]
    for task in islice(cls.tasks("train", 0), 3):
        gold = cls.demonstrate(task, seed=task.seed)
        for actions in UNDONE:
            assert played(cls, task, actions).verdict.reward == 0.0, (task.id, actions)
        assert [played(cls, task, actions).verdict.reward for actions in (gold[:1], gold)] == [1.0, 1.0]
