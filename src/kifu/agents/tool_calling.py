"""The plain strategy: write a turn, execute its calls in order, show the answers, until the episode ends."""

from kifu.agents.contract import PolicyHandle, World
from kifu.envs import Task


class ToolCallingAgent:
    """A turn without a call is the final answer; a call that cannot be read is answered by the reason."""

    id = "tool_calling/1"

    async def run(self, task: Task, world: World, policy: PolicyHandle) -> None:
        """Attempt one task."""
        while not world.ended:
            turn = await policy.write()
            if world.ended:
                return
            if turn.error is not None:
                results = [await world.reject(turn.error)]
            elif turn.calls:
                results = await world.call(turn.calls)
            else:
                await world.finish(turn.text)
            if not world.ended:
                policy.show([result.text for result in results])
