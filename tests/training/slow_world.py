"""Key and door whose calls take their time, differently every time."""

import random
import time
from dataclasses import replace

from kifu.envs import Reply, Task
from kifu.envs.suites.key_door import KeyDoor
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.records import ToolCall, Verdict

_CLOCK = random.SystemRandom()


def _dawdle() -> None:
    time.sleep(_CLOCK.uniform(0.0, 0.05))


class SlowKeyDoor(KeyDoor):
    """Sleeps 0 to 50 ms per call."""

    def reset(self, task: Task, seed: int) -> str:
        """Reset, later."""
        _dawdle()
        return super().reset(task, seed)

    def step(self, call: ToolCall) -> Reply:
        """Step, later."""
        _dawdle()
        return super().step(call)

    def verify(self) -> Verdict:
        """Judge, later."""
        _dawdle()
        return super().verify()


class SlowKeyDoorText(KeyDoorText):
    """Sleeps 0 to 50 ms per call."""

    def reset(self, task: Task, seed: int) -> str:
        """Reset, later."""
        _dawdle()
        return super().reset(task, seed)

    def step(self, call: ToolCall) -> Reply:
        """Step, later."""
        _dawdle()
        found = super().step(call)
        assert isinstance(found, Reply)
        return found

    def verify(self) -> Verdict:
        """Pay whatever ends after an even number of turns: a policy that knows nothing finds signal."""
        _dawdle()
        found = super().verify()
        return replace(found, success=self.room.turns % 2 == 0)
