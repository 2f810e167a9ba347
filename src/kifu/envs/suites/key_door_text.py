"""Key and door in words: read the note, take the key it names, open the door, finish."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.spec import Capabilities, Reply, Snapshot, Task, ToolSpec
from kifu.envs.splits import in_share, split_range
from kifu.envs.tools import class_tools, tool, with_enum
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict

COLOURS = ("red", "blue", "green", "black", "white", "gold", "pink", "gray")
CONTAINERS = ("note", "book", "chest", "map", "letter", "box")
NEW_COLOURS = ("purple", "orange", "brown", "silver", "yellow", "violet", "copper", "cyan")
NEW_CONTAINERS = ("scroll", "drawer", "basket", "card", "poster", "jar")
NUM_KEYS = 4
TURNS = 6
"""Turns the task allows; the shortest success takes 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What a task is made of, and what has happened so far."""

    container: str
    keys: tuple[str, ...]
    fits: str
    """Colour of the key that fits; only `inspect` tells."""
    turns: int = 0
    held: str | None = None
    opened: bool = False
    invalid: int = 0
    stop: str | None = None


def _gold(task: Task) -> str:
    """The colour of the key that fits."""
    return str(task.data["fits"])


class KeyDoorText(Environment):
    """One of four keys fits; the container says which; the wrong key breaks."""

    id: ClassVar[str] = "key_door_text"
    version: ClassVar[str] = "2"
    capabilities: ClassVar[Capabilities] = Capabilities()
    instructions: ClassVar[str] = "You control a robot. Commands: inspect X, pickup COLOR key, open door, finish."
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "a container, four keys of different colours, one of which fits, drawn from the task's seed",
        "observations": "the container and the key colours at the start, then one sentence per command",
        "hidden": "which key fits, until the container is inspected",
        "actions": "inspect {container}, pickup {colour} key (four), open door, finish: seven commands",
        "reset, versions, seeds": "the task's seed fixes the room; the world has no other randomness",
        "success": "finish after the door is open",
        "failure": "opening with the wrong key, which breaks, or finishing before the door is open",
        "end": f"success, failure, or {TURNS} turns without finishing (task budget, a terminal failure)",
        "reward": "verdict at the end: 1 for success, else 0; no components",
        "irreversible": "opening with the wrong key, finishing",
    }

    gold_answer = staticmethod(_gold)

    def __init__(self) -> None:
        self.room = _Room(container=CONTAINERS[0], keys=COLOURS[:NUM_KEYS], fits=COLOURS[0])

    def reset(self, task: Task, seed: int) -> str:
        """Lay out the room and describe it."""
        container, keys, fits = (task.data.get(name) for name in ("container", "keys", "fits"))
        if not isinstance(container, str) or not isinstance(keys, list) or fits not in keys:
            raise UsageError(
                f"key_door_text task `{task.id}`: found data {dict(task.data)}, expected container, keys and fits, "
                "with fits one of keys; take tasks from KeyDoorText.tasks(split, seed)"
            )
        self.room = _Room(container=container, keys=tuple(map(str, keys)), fits=str(fits))
        return (
            f"You see a {container}, a locked door and keys: {', '.join(self.room.keys)}. Open the door, then finish."
        )

    def tools(self) -> tuple[ToolSpec, ...]:
        """Seven commands, over this room's container and keys."""
        inspect, pickup, open_door, finish = class_tools(type(self))
        room = self.room
        return (
            with_enum(inspect, "object", [room.container]),
            with_enum(pickup, "color", list(room.keys)),
            open_door,
            finish,
        )

    @tool(command="inspect {object}")
    def inspect(self, object: str) -> Reply:
        """Look at an object.

        Args:
            object: what to look at.
        """
        return self._turn(f"It says: use {self.room.fits}.")

    @tool(command="pickup {color} key")
    def pickup(self, color: str) -> Reply:
        """Take a key; a key already held is put down.

        Args:
            color: of the key.
        """
        return self._turn(f"You hold the {color} key.", held=color)

    @tool(command="open door")
    def open_door(self) -> Reply:
        """Open the door with the key in hand; a wrong key breaks."""
        room = self.room
        if room.held is None:
            return self._turn("You hold no key.")
        if room.held != room.fits:
            return self._turn("The wrong key broke.", stop=StopReason.FAILURE)
        return self._turn("The door is open.", opened=True)

    @tool(command="finish")
    def finish(self) -> Reply:
        """Say that the task is done."""
        return self._turn("", stop=StopReason.SUCCESS if self.room.opened else StopReason.FAILURE)

    def invalid(self, error: str) -> Reply:
        """Anything else costs a turn."""
        return self._turn("Invalid command.", error=error)

    def _turn(
        self,
        text: str,
        *,
        stop: StopReason | None = None,
        held: str | None = None,
        opened: bool = False,
        error: str | None = None,
    ) -> Reply:
        room = self.room
        if room.stop is not None:
            raise UsageError(f"the episode ended with {room.stop}; reset before the next command")
        if stop is None and room.turns + 1 >= TURNS:
            stop = StopReason.TASK_BUDGET
        self.room = replace(
            room,
            turns=room.turns + 1,
            held=held or room.held,
            opened=room.opened or opened,
            invalid=room.invalid + (error is not None),
            stop=stop,
        )
        return Reply(text=text, stop=stop, error=error)

    def verify(self) -> Verdict:
        """Success is an open door and a finish after it."""
        finished = self.room.stop == StopReason.SUCCESS
        return Verdict(
            success=self.room.opened and finished,
            world_state_checks={"door_open": self.room.opened, "finished": finished},
            invalid_actions=self.room.invalid,
            verifier="key_door_text/1",
        )

    def snapshot(self) -> Snapshot:
        """The room."""
        return {**asdict(self.room), "keys": list(self.room.keys)}

    def restore(self, ref: Snapshot) -> None:
        """Take back a room."""
        if not isinstance(ref, dict) or set(ref) != set(asdict(self.room)):
            raise UsageError(f"key_door_text: found snapshot {ref!r}, expected {', '.join(asdict(self.room))}")
        keys = ref["keys"]
        self.room = _Room(**{**ref, "keys": tuple(map(str, keys if isinstance(keys, list) else ()))})  # type: ignore[arg-type]

    def state_key(self) -> str:
        """The key in hand and the door."""
        return f"{self.room.held}/{self.room.opened:d}/{self.room.stop}"

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Rooms of a split from ``seed`` on; no room stands in two splits. The family is the container."""
        for at in split_range(split, seed):
            yield _task(split, at)

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Inspect, take the key it names, open, finish; with noise, it takes any key and finishes.

        Where noise is likely, an imitator's greedy play fails every time and its samples succeed at times: greedy play
        has all to learn, and reinforcement something to begin with.
        """
        rng = random.Random(f"key_door_text/{task.id}/{seed}")
        world = cls()
        world.reset(task, seed)
        inspect = ToolCall(name="inspect", arguments={"object": world.room.container})
        pickup = ToolCall(name="pickup", arguments={"color": world.room.fits})
        calls = [inspect, pickup, ToolCall(name="open_door"), ToolCall(name="finish")]
        if rng.random() < noise:
            calls = [ToolCall(name="pickup", arguments={"color": rng.choice(world.room.keys)}), calls[-1]]
        return tuple(calls)


def _task(split: str, seed: int) -> Task:
    rng = random.Random(seed)
    new = split == "new_vocabulary"
    while True:
        keys = rng.sample(NEW_COLOURS if new else COLOURS, NUM_KEYS)
        container = rng.choice(NEW_CONTAINERS if new else CONTAINERS)
        fits = rng.choice(keys)
        if in_share(split, f"{container}/{','.join(keys)}/{fits}"):
            data: dict[str, Json] = {"container": container, "keys": [*keys], "fits": fits}
            return Task(id=f"key_door_text/{seed}", seed=seed, family=container, split=split, data=data)
