"""The text room, sentence by sentence."""

from collections.abc import Sequence
from itertools import islice

import pytest

from kifu.envs import Reply, Task, command_text, finite_calls
from kifu.envs.suites.key_door_text import COLOURS, CONTAINERS, KeyDoorText
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall

ROOM = Task(id="room", data={"container": "map", "keys": ["red", "gold", "pink", "gray"], "fits": "gold"})


def started() -> KeyDoorText:
    world = KeyDoorText()
    world.reset(ROOM, 0)
    return world


def say(world: KeyDoorText, *commands: str) -> list[Reply]:
    """Execute commands by their text, through the tool templates."""
    replies = []
    for command in commands:
        specs = {spec.name: spec for spec in world.tools()}
        known = {command_text(specs[call.name], call.arguments): call for call in calls(world)}
        reply = world.step(known[command]) if command in known else world.invalid(command)
        assert isinstance(reply, Reply)
        replies.append(reply)
    return replies


def calls(world: KeyDoorText) -> Sequence[ToolCall]:
    found = finite_calls(world.tools(), world.allowed())
    assert found is not None
    return found


def test_the_opening_describes_the_room_and_hides_the_key_that_fits() -> None:
    world = KeyDoorText()
    text = "You see a map, a locked door and keys: red, gold, pink, gray. Open the door, then finish."
    assert world.reset(ROOM, 0) == text


def test_there_are_exactly_seven_commands() -> None:
    world = started()
    specs = {spec.name: spec for spec in world.tools()}
    assert [command_text(specs[call.name], call.arguments) for call in calls(world)] == [
        "inspect map",
        "pickup red key",
        "pickup gold key",
        "pickup pink key",
        "pickup gray key",
        "open door",
        "finish",
    ]


def test_the_expert_opens_the_door_and_finishes() -> None:
    world = started()
    replies = say(world, "inspect map", "pickup gold key", "open door", "finish")
    assert [reply.text for reply in replies] == [
        "It says: use gold.",
        "You hold the gold key.",
        "The door is open.",
        "",
    ]
    assert [reply.stop for reply in replies] == [None, None, None, StopReason.SUCCESS]
    assert world.verify().reward == 1.0


@pytest.mark.parametrize(
    ("commands", "text", "stop"),
    [
        (("open door",), "You hold no key.", None),
        (("pickup red key", "open door"), "The wrong key broke.", StopReason.FAILURE),
        (("finish",), "", StopReason.FAILURE),
        (("inspect letter",), "Invalid command.", None),
        (("pickup blue key",), "Invalid command.", None),
        (("please open the door",), "Invalid command.", None),
        (("pickup red key", "pickup gold key", "open door"), "The door is open.", None),
        (("inspect map",) * 6, "It says: use gold.", StopReason.TASK_BUDGET),
        (("hello",) * 6, "Invalid command.", StopReason.TASK_BUDGET),
    ],
)
def test_what_a_command_does(commands: tuple[str, ...], text: str, stop: StopReason | None) -> None:
    world = started()
    last = say(world, *commands)[-1]
    assert (last.text, last.stop) == (text, stop)
    assert world.verify().reward == 0.0


def test_success_on_the_last_turn_counts() -> None:
    world = started()
    replies = say(world, "hello", "open door", "inspect map", "pickup gold key", "open door", "finish")
    assert replies[-1].stop is StopReason.SUCCESS
    assert world.verify().invalid_actions == 1


def test_after_the_end_nothing_more_can_be_done() -> None:
    world = started()
    say(world, "finish")
    with pytest.raises(UsageError, match="the episode ended"):
        world.finish()


def test_tasks_of_a_seed_stay_the_same() -> None:
    """Golden: a change of these values is a new version of the environment."""
    starts = {"train": 0, "held_out": 5_000_000, "new_vocabulary": 9_000_000, "demonstration": 10_000_000}
    found = {split: dict(next(iter(KeyDoorText.tasks(split, start))).data) for split, start in starts.items()}
    assert found == {
        "train": {"container": "chest", "keys": ["pink", "gray", "black", "red"], "fits": "red"},
        "held_out": {"container": "box", "keys": ["gray", "white", "gold", "blue"], "fits": "gray"},
        "new_vocabulary": {"container": "drawer", "keys": ["brown", "silver", "yellow", "cyan"], "fits": "yellow"},
        "demonstration": {"container": "map", "keys": ["blue", "black", "white", "red"], "fits": "white"},
    }
    assert next(iter(KeyDoorText.tasks("held_out", 5_000_000))).split == "held_out"


def test_every_container_and_colour_occurs_and_the_container_is_the_family() -> None:
    tasks = list(islice(KeyDoorText.tasks("train", 0), 300))
    assert {task.family for task in tasks} == {*CONTAINERS}
    assert {str(task.data["fits"]) for task in tasks} == {*COLOURS}
    assert all(task.family == task.data["container"] for task in tasks)


def test_a_seed_of_another_split_is_refused() -> None:
    with pytest.raises(UsageError, match="split `train` has seeds 0 to 4999999, found 5000000"):
        next(iter(KeyDoorText.tasks("train", 5_000_000)))
    with pytest.raises(UsageError, match="did you mean `held_out`"):
        next(iter(KeyDoorText.tasks("heldout", 5_000_000)))


def test_noisy_demonstrations_give_up_or_succeed_and_are_always_well_formed() -> None:
    """A share of noise fails and the rest succeeds, which is what a warm start before RL needs."""
    earned = []
    for task in islice(KeyDoorText.tasks("demonstration", 10_000_000), 200):
        world = KeyDoorText()
        world.reset(task, 0)
        for call in KeyDoorText.demonstrate(task, noise=0.6):
            assert isinstance(call, ToolCall)
            world.step(call)
        earned.append(world.verify().reward)
        assert world.verify().invalid_actions == 0
    assert abs(sum(map(float, earned)) / 200 - 0.4) < 3 * (0.6 * 0.4 / 200) ** 0.5  # type: ignore[arg-type]


def test_a_task_without_a_room_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="take tasks from"):
        KeyDoorText().reset(Task(id="t"), 0)
