"""Worlds for tests of a policy's memory."""

from dataclasses import replace
from typing import ClassVar

from kifu.envs import Capabilities, Task, ToolSpec
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.records import ToolCall


class Recalling(KeyDoorText):
    """Has a tool of that name."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """One more."""
        return (*super().tools(), ToolSpec(name="recall", description="", parameters={"type": "object"}))


class Endless(KeyDoorText):
    """Goes on from where a rollout was cut."""

    capabilities: ClassVar[Capabilities] = replace(KeyDoorText.capabilities, continuing=True)


class Noting(KeyDoorText):
    """Its demonstrator looks in vain, writes down what it read, and looks again before it takes a key."""

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """The plain demonstrator's calls, with three of a memory between them."""
        inspect, *rest = super().demonstrate(task, seed=seed)
        asks = ToolCall(name="recall", arguments={"query": "key"})
        writes = ToolCall(name="remember", arguments={"key": "key", "text": str(task.data["fits"])})
        return (inspect, asks, writes, asks, *rest)
