"""What a policy can call: the tools of the world, and those of its own memory, which the world hears nothing of."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from kifu.agents import Answer, Memory, MemoryRule
from kifu.envs import ToolSpec
from kifu.envs.calling.guard import Called, GuardedEnvironment
from kifu.envs.text import clip, visible
from kifu.errors import EnvironmentFailure
from kifu.records import Event, ToolCall, ToolResult, Turn


class Toolbox:
    """Every tool of one rollout behind one door.

    Args:
        guard: the environment.
        rule: of the policy's memory; None: it has none outside of its context.
    """

    def __init__(self, guard: GuardedEnvironment, rule: MemoryRule | None) -> None:
        self._guard = guard
        self._own: tuple[ToolSpec, ...] = () if rule is None else rule.tools
        self._memory: Memory | None = None if rule is None else rule.begin()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """As of the last call.

        Raises:
            EnvironmentFailure: the environment has a tool of the same name as the memory.
        """
        found = self._guard.tools()
        taken = sorted({spec.name for spec in found} & {spec.name for spec in self._own})
        if taken:
            raise EnvironmentFailure(
                f"{self._guard.environment_id}: tool `{taken[0]}` is also one of the policy's memory; rename it, or "
                "leave policy.agent.memory out"
            )
        return (*found, *self._own)

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """Names the phase of the world allows, as of the last call; memory is always allowed. None allows all."""
        names = self._guard.allowed()
        return None if names is None else (*names, *(spec.name for spec in self._own))

    async def call(self, call: ToolCall, *, index: int) -> tuple[Called, Event | None]:
        """Execute one call; what it did to the memory, if that is what was called.

        Raises:
            EnvironmentFailure: the environment raised, hung or returned nonsense.
        """
        answer = self._remembered(call, index)
        if answer is None:
            return await self._guard.call(call), None
        reply, event = answer
        text, cut_bytes = clip(visible(reply.text))
        shown = replace(reply, text=text)
        return Called(reply=shown, latency_s=0.0, digest_before=self._guard.final_digest, cut_bytes=cut_bytes), event

    async def again(self, turn: Turn) -> AsyncIterator[tuple[ToolResult, Called, Event | None]]:
        """Execute the calls of a recorded turn once more: what is recorded of each, and what `call` gives now.

        Raises:
            EnvironmentFailure: the environment raised, hung or returned nonsense.
        """
        for result in turn.results:
            if result.call is None:
                yield result, await self._guard.reject(turn.action.parse_error or result.error or ""), None
            else:
                yield result, *await self.call(turn.action.executed[result.call], index=result.call)

    def retrace(self, turns: Iterable[Turn]) -> None:
        """Bring the memory to where recorded turns left it; the world is put back apart."""
        for turn in turns:
            for index in (result.call for result in turn.results if result.call is not None):
                self._remembered(turn.action.executed[index], index)

    def _remembered(self, call: ToolCall, index: int) -> Answer | None:
        """What the memory answers; None where the call is not one of its own."""
        if self._memory is None or call.name not in {spec.name for spec in self._own}:
            return None
        return self._memory.answer(call, index=index)
