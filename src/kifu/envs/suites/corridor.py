"""Five cells in a row: the smallest episode with two ends."""

import random
from collections.abc import Iterable, Mapping
from typing import ClassVar

from kifu.envs.contract import Environment
from kifu.envs.spec import Capabilities, Reply, Snapshot, Task
from kifu.envs.tools import tool
from kifu.errors import UsageError
from kifu.records import Json, StopReason, ToolCall, Verdict

START, LOST, WON = 2, 0, 4


class Corridor(Environment):
    """Start in cell 2; cell 0 is a failure, cell 4 a success. A step limit is the collector's, not the task's."""

    id: ClassVar[str] = "corridor"
    capabilities: ClassVar[Capabilities] = Capabilities()
    instructions: ClassVar[str] = "You walk in a corridor. Commands: left, right."
    vocabulary: ClassVar[tuple[str, ...]] = tuple(f"cell{index}" for index in range(5))
    facts: ClassVar[Mapping[str, str]] = {
        "initial states": "cell 2",
        "observations": "the cell's number; nothing is hidden",
        "actions": "left, right",
        "reset, versions, seeds": "one initial state; no randomness in the world",
        "success": "cell 4",
        "failure": "cell 0",
        "end": "cell 0 or cell 4; a step limit belongs to the collector",
        "reward": "verdict at the end: 1 in cell 4, else 0",
        "irreversible": "entering cell 0 or cell 4",
    }

    def __init__(self) -> None:
        self.cell = START

    def reset(self, task: Task, seed: int) -> str:
        """Stand in cell 2."""
        self.cell = START
        return self.vocabulary[self.cell]

    @tool
    def left(self) -> Reply:
        """Go one cell to the left."""
        return self._move(-1)

    @tool
    def right(self) -> Reply:
        """Go one cell to the right."""
        return self._move(1)

    def _move(self, by: int) -> Reply:
        if self.cell in (LOST, WON):
            raise UsageError(f"the episode ended in cell {self.cell}; reset before the next move")
        self.cell += by
        stop = {LOST: StopReason.FAILURE, WON: StopReason.SUCCESS}.get(self.cell)
        return Reply(text=self.vocabulary[self.cell], stop=stop)

    def invalid(self, error: str) -> Reply:
        """Nothing moves."""
        return Reply(text=self.vocabulary[self.cell], error=error)

    def verify(self) -> Verdict:
        """Success is standing in cell 4."""
        done = self.cell == WON
        return Verdict(success=done, world_state_checks={"in_cell_4": done}, verifier="corridor/1")

    def snapshot(self) -> Json:
        """The cell."""
        return {"cell": self.cell}

    def restore(self, ref: Snapshot) -> None:
        """Stand where the snapshot was taken."""
        if not isinstance(ref, dict) or ref.get("cell") not in range(5):
            raise UsageError(f"corridor: found snapshot {ref!r}, expected {{'cell': 0..4}}")
        self.cell = int(str(ref["cell"]))

    def state_key(self) -> str:
        """The cell."""
        return self.vocabulary[self.cell]

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """The one task, for every seed."""
        at = seed
        while True:
            yield Task(id="corridor", seed=at, family="corridor", split=split)
            at += 1

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """Right, right; with noise, each step goes left or right at random instead."""
        rng = random.Random(f"corridor/{task.seed}/{seed}")
        cell, calls = START, []
        while cell not in (LOST, WON):
            step = rng.choice((-1, 1)) if rng.random() < noise else 1
            calls.append(ToolCall(name="left" if step < 0 else "right"))
            cell += step
        return tuple(calls)
