"""One episode without a model: scripted, random and silent agents, for cards, checks and demonstrations."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kifu.envs.calling.guard import Called, GuardedEnvironment
from kifu.envs.spec import Observation, Task
from kifu.envs.tools import finite_calls
from kifu.records import StopReason, ToolCall, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What was shown, and what the world said at the end."""

    opening: Observation
    steps: tuple[Called, ...]
    digests: tuple[str | None, ...]
    """``[K + 1]`` after reset and after every step."""
    verdict: Verdict
    stop: StopReason | None
    """None when the agent stopped or was cut, and the task had not ended."""

    @property
    def components(self) -> dict[str, float]:
        """Sum of every reward component."""
        total: dict[str, float] = {}
        for step in self.steps:
            for name, value in step.reply.rewards.items():
                total[name] = total.get(name, 0.0) + value
        return total


PlayAgent: TypeAlias = Callable[[GuardedEnvironment, int], "ToolCall | str | None"]
"""From the world and the number of the turn to a call, a final message, or None to be cut there."""


def scripted(actions: Sequence[ToolCall | str]) -> PlayAgent:
    """Plays a list, then stops."""
    return lambda _, turn: actions[turn] if turn < len(actions) else None


def silent(_: GuardedEnvironment, turn: int) -> str:
    """Answers at once, with nothing: what the laziest policy earns."""
    return ""


def uniform_agent(seed: str, *, otherwise: Sequence[ToolCall | str] = ()) -> PlayAgent:
    """Any allowed call with equal probability; where the calls are not finite, the script ``otherwise``."""
    rng = random.Random(seed)

    def choose(world: GuardedEnvironment, turn: int) -> ToolCall | str | None:
        calls = finite_calls(world.tools(), world.allowed())
        if calls is None:
            return otherwise[turn] if turn < len(otherwise) else None
        return rng.choice(calls) if calls else None

    return choose


async def play(
    guard: GuardedEnvironment, task: Task, agent: PlayAgent, *, seed: int | None = None, max_steps: int = 64
) -> Episode:
    """Reset, act until the task ends, the agent answers or ``max_steps``, and judge.

    Args:
        guard: not yet closed; the caller closes it.
        task: the task.
        agent: who acts.
        seed: of the reset; the task's own when None.
        max_steps: a cut, not a failure.

    Raises:
        BoundaryError: environment or verifier failed.
    """
    opening = await guard.reset(task, task.seed if seed is None else seed)
    steps: list[Called] = []
    digests = [guard.initial_digest]
    while len(steps) < max_steps and not (steps and steps[-1].reply.stop):
        action = agent(guard, len(steps))
        if action is None:
            break
        if isinstance(action, str):
            await guard.answered(action)
            break
        steps.append(await guard.call(action))
        digests.append(guard.final_digest)
    return Episode(
        opening=opening,
        steps=tuple(steps),
        digests=tuple(digests),
        verdict=await guard.verify(),
        stop=steps[-1].reply.stop if steps else None,
    )
