"""The plain strategy: write a turn, execute its calls in order, show the answers, until the episode ends."""

from kifu.agents.contract import PolicyHandle, World
from kifu.agents.memory import MemoryRule
from kifu.agents.repair import Repair
from kifu.envs import Task
from kifu.records import ToolCall, ToolResult


class ToolCallingAgent:
    """A turn without a call is the final answer; a call that cannot be read is answered by the reason."""

    id: str = "tool_calling/1"

    def __init__(self, repair: Repair | None = None, *, memory: MemoryRule | None = None) -> None:
        """Set up a strategy.

        Args:
            repair: rewrites calls before they are executed; what was sampled is shown and trained as sampled.
            memory: outside of the context; its tools stand beside the world's, and a call of one is a turn.
        """
        self._repair = repair
        self.memory = memory
        if repair is not None:
            self.id = f"{self.id}+{repair.id}"

    async def run(self, task: Task, world: World, policy: PolicyHandle) -> None:
        """Attempt one task."""
        while not world.ended:
            turn = await policy.write()
            if world.ended:
                return
            if turn.error is not None:
                results = [await world.reject(turn.error)]
            elif turn.calls:
                results = await self._call(turn.calls, world)
            else:
                await world.finish(turn.text)
            if not world.ended:
                policy.show([result.text for result in results])

    async def _call(self, calls: tuple[ToolCall, ...], world: World) -> list[ToolResult]:
        if self._repair is None:
            return await world.call(calls)
        repaired = self._repair(calls, world.tools)
        return await world.call(repaired, rewriter=None if repaired == calls else self._repair.id)
