"""A memory outside of the context: its worth where a window hides the clue, and how record and branches have it."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from kifu.agents import KeyValueMemory, ToolCallingAgent
from kifu.envs import Capabilities, Environment, Reply, SnapshotKind, Task, tool
from kifu.envs.finite import History, best_deterministic, explore, full
from kifu.envs.suites.key_door import COLOURS, KeyDoor
from kifu.policy import Request, ScriptedSampler
from kifu.records import (
    BlobStore,
    Json,
    RolloutKey,
    StopReason,
    Trajectory,
    Verdict,
    from_row,
    pre_update_check,
    to_row,
)
from kifu.records.atif import to_atif
from kifu.render import ChatRenderer
from kifu.rollout import Branchable, Departure, Setting, Window, retell, run_rollout

MakeSetting: TypeAlias = Callable[..., Setting]
Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
Says: TypeAlias = Callable[..., ScriptedSampler]
Spell: TypeAlias = Callable[[str], list[int]]

REMEMBERING = ToolCallingAgent(memory=KeyValueMemory(entries=2, characters=20))
TASKS = [Task(id=door, family=door, data={"door": door, "budget": 6}) for door in COLOURS]


class LongWay(KeyDoor):
    """No key is in reach before the third step, so something stands between the clue and its use."""

    def allowed(self) -> tuple[str, ...]:
        """The phase, without the keys in the first two steps."""
        return tuple(name for name in super().allowed() if self.state.budget <= 4 or not name.startswith("pickup"))


def last_turn(history: History) -> Hashable:
    """More than a window over one turn shows: the last call, what it gave with its mask, and the number of steps.

    With the number of steps no information state comes back in an episode, so success is linear in each one's
    probabilities and no stochastic policy does better than the best deterministic one.
    """
    calls = tuple(call.name for _, call in history[-2:-1] if call is not None)
    return len(history), calls, history[-1][0]


class Reader:
    """Acts on nothing but the text in its context: takes the key whose colour stands behind the prompt, else a red one.

    Args:
        renderer: reads the context.
        spell: writes.
        remembers: whether it writes the clue down and looks it up.
    """

    def __init__(self, renderer: ChatRenderer, spell: Spell, *, remembers: bool) -> None:
        self._renderer = renderer
        self._spell = spell
        self._prompt = 0
        self.contexts: list[str] = []
        plain = ("inspect", "inspect", "pickup_{0}", "open_{0}", "finish")
        noting = ("inspect", "remember {0} as door", "inspect", "recall door", "pickup_{0}", "open_{0}", "finish")
        self._plan = noting if remembers else plain

    def __call__(self, request: Request) -> Sequence[int]:
        if request.turn == 0:
            self._prompt, self.contexts = len(request.token_ids), []
        seen = self._renderer.tokenizer.decode(request.token_ids[self._prompt :].tolist())
        self.contexts.append(seen)
        colour = "blue" if "blue" in seen else "red"
        return self._spell(self._plan[request.turn].format(colour))


def test_a_window_over_one_turn_is_worth_one_half_at_best_and_the_whole_history_everything() -> None:
    world = explore(LongWay(), TASKS)
    assert best_deterministic(world, full, horizon=6).value == 1.0
    assert best_deterministic(world, last_turn, horizon=6).value == 0.5


@pytest.mark.parametrize(("remembers", "success"), [(True, 1.0), (False, 0.5)])
async def test_with_a_memory_the_door_opens_behind_the_window_and_without_one_half_the_time(
    make_setting: MakeSetting, attempt: Attempt, renderer: ChatRenderer, spell: Spell, remembers: bool, success: float
) -> None:
    setting = make_setting(LongWay, history=Window(turns=1), agent=REMEMBERING if remembers else ToolCallingAgent())
    reader, found, shown = Reader(renderer, spell, remembers=remembers), [], []
    for task in TASKS:
        found.append(await attempt(setting, ScriptedSampler(reader), task=task))
        shown.append(reader.contexts)

    assert sum(item.reward or 0.0 for item in found) / len(TASKS) == success
    hidden = 3 if remembers else 2
    assert ["clue" in text for text in shown[0]] == [False, True, *[False] * (len(shown[0]) - 2)]
    assert shown[0][hidden] == shown[1][hidden], "behind the window both doors look the same"
    assert all(pre_update_check(item) == [] for item in found)
    kinds = [[event.kind for event in turn.events if event.kind.startswith("memory.")] for turn in found[1].turns]
    assert kinds == [[], ["memory.write"], [], ["memory.read"], [], [], []] if remembers else [[]] * 5


async def test_the_record_has_every_write_every_read_and_every_miss(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    said = (
        "recall door",
        "remember blue as door",
        "remember far too long a text for it as lamp",
        "recall DOOR",
        "finish",
    )
    found = await attempt(make_setting(KeyDoor, agent=REMEMBERING), says(*said), task=TASKS[0])

    by: dict[str, Json] = {"by": "key_value/1(entries=2, characters=20)", "call": 0}
    told = [[(event.kind, dict(event.detail)) for event in turn.events] for turn in found.turns]
    assert told == [
        [("memory.read", {**by, "query": "door", "found": []})],
        [("memory.write", {**by, "key": "door", "text": "blue", "replaced": None})],
        [],
        [("memory.read", {**by, "query": "DOOR", "found": [{"key": "door", "text": "blue"}]})],
        [],
    ]
    assert [turn.action.executed[0].name for turn in found.turns] == [
        "recall",
        "remember",
        "remember",
        "recall",
        "finish",
    ]
    assert [turn.results[0].text for turn in found.turns[:2]] == ["Nothing in memory matches.", "Remembered as door."]
    assert found.turns[2].results[0].error == "the text has 26 characters, at most 20 are kept; shorten it"
    assert found.turns[3].results[0].text == "door: blue"
    assert from_row(to_row(found)).turns == found.turns
    steps = [step["extra"].get("events") for step in to_atif(found)["steps"] if step["source"] == "agent"]
    assert steps[3] == [{"kind": "memory.read", **told[3][0][1]}]


async def test_the_world_hears_nothing_of_the_memory(make_setting: MakeSetting, attempt: Attempt, says: Says) -> None:
    said = ("remember red as door", "recall door", "recall nothing", "finish")
    found = await attempt(make_setting(KeyDoor, agent=REMEMBERING), says(*said), task=TASKS[0])

    digests = [turn.results[0].digest_before for turn in found.turns]
    assert digests == [found.environment.initial_digest] * 4
    assert found.verdict is not None
    assert found.verdict.invalid_actions == 0


async def test_a_rollout_retold_from_its_record_has_the_memory_s_answers_and_tools(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    setting = make_setting(KeyDoor, agent=REMEMBERING)
    found = await attempt(setting, says("remember red as door", "recall door", "finish"), task=TASKS[0])

    again = await retell(setting, found, task=TASKS[0])
    assert [message.content for message in again.messages if message.role == "tool"] == [
        "Remembered as door.",
        "door: red",
        "ended",
    ]
    assert [[tool.name for tool in prompt.tools][-2:] for prompt in again.prompts] == [["remember", "recall"]] * 3


async def test_its_tools_stand_in_the_prompt_like_any_other(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    found = [
        await attempt(make_setting(KeyDoor, agent=agent), says("finish"), task=TASKS[0])
        for agent in (ToolCallingAgent(), REMEMBERING)
    ]
    without, having = [renderer.tokenizer.decode(item.tape_ids(0)[: item.turns[0].start].tolist()) for item in found]
    commands = [[line for line in text.splitlines() if line.startswith("- ")] for text in (without, having)]
    told = [line.partition(":")[0] for line in commands[1][len(commands[0]) :]]
    assert told == ["- remember <text> as <key>", "- recall <query>"]


class Recalling(Environment):
    """Has a tool of that name."""

    id = "recalling"

    def reset(self, task: Task, seed: int) -> str:
        """Nothing."""
        return "start"

    @tool
    def recall(self) -> Reply:
        """Its own."""
        return Reply(text="mine")

    def verify(self) -> Verdict:
        """Nothing."""
        return Verdict(success=True)


async def test_a_world_with_a_tool_of_the_same_name_fails_by_name(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    found = await attempt(make_setting(Recalling, agent=REMEMBERING), says("recall"))
    assert found.outcome.reason is StopReason.ENV_ERROR
    assert "recalling: tool `recall` is also one of the policy's memory" in found.outcome.detail


class Led(KeyDoor):
    """Can only be led to where it was."""

    capabilities = Capabilities(snapshot=SnapshotKind.REPLAY)

    def state_digest(self) -> str:
        """The state."""
        return repr(self.state)


@pytest.mark.parametrize("world", [KeyDoor, Led])
async def test_a_branch_has_the_memory_of_its_point_and_writes_to_its_own_copy(
    make_setting: MakeSetting, says: Says, tmp_path: Path, world: type[KeyDoor]
) -> None:
    branchable = Branchable(states=BlobStore(tmp_path / "blobs"), snapshot=world.capabilities.snapshot)
    setting = make_setting(world, agent=REMEMBERING, branchable=branchable)

    async def run(member: int, said: tuple[str, ...], departure: Departure | None = None) -> Trajectory:
        key = RolloutKey(seed=7, step=0, group=0, member=member)
        return await run_rollout(setting, writer=says(*said), key=key, task=TASKS[0], departure=departure)

    parent = await run(0, ("remember one as a", "remember two as b", "inspect", "recall b", "finish"))
    leaving = Departure(parent=parent, turn=2, chosen_by="the test")
    shared = ("-", "-")
    other = await run(1, (*shared, "remember three as b", "recall b", "finish"), leaving)
    third = await run(2, (*shared, "recall b", "recall a", "finish"), leaving)

    assert [turn.results[0].text for turn in other.turns[2:4]] == ["Remembered as b.", "b: three"]
    assert other.turns[2].events[1].detail["replaced"] == "two"
    assert [turn.results[0].text for turn in third.turns[2:4]] == ["b: two", "a: one"]
    assert other.turns[:2] == third.turns[:2] == parent.turns[:2]
