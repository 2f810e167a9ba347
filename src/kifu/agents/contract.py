"""What an agent sees: a world it can act on and a policy that writes. Never the recorder, never the reward."""

from collections.abc import Sequence
from typing import Protocol

from kifu.agents.memory import MemoryRule
from kifu.envs import Task, ToolSpec
from kifu.records import ToolCall, ToolResult
from kifu.render import Parsed


class World(Protocol):
    """The environment as an agent sees it."""

    @property
    def ended(self) -> bool:
        """Whether the episode is over; an agent returns then."""
        ...

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools as they stand now."""
        ...

    async def call(self, calls: Sequence[ToolCall], *, rewriter: str | None = None) -> list[ToolResult]:
        """Execute the calls of the last turn in order and answer each; stops at the call that ends the episode.

        Args:
            calls: what to execute.
            rewriter: id and version of whoever changed the sampled calls; needed when they differ from those.
        """
        ...

    async def reject(self, error: str) -> ToolResult:
        """Let the environment answer a last turn that could not be read as a call."""
        ...

    async def finish(self, text: str) -> None:
        """The policy answered without a call: the environment hears the text and the episode ends naturally."""
        ...


class PolicyHandle(Protocol):
    """The policy as an agent sees it."""

    async def write(self) -> Parsed:
        """Let the policy write one turn in the present context."""
        ...

    def show(self, texts: Sequence[str]) -> None:
        """Append observations to the context; the next turn is written after them."""
        ...


class Agent(Protocol):
    """A strategy between environment and sampler."""

    @property
    def id(self) -> str:
        """Name and version; part of the protocol."""
        ...

    @property
    def memory(self) -> MemoryRule | None:
        """What it can keep outside of its context; every attempt begins its own. None: nothing."""
        ...

    async def run(self, task: Task, world: World, policy: PolicyHandle) -> None:
        """Attempt one task; return when the world ended or nothing is left to do."""
        ...
