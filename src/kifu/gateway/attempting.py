"""One attempt of an outside agent: opened with keys of its own, run, judged, sealed."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kifu.envs import Task
from kifu.errors import (
    AgentFailure,
    BoundaryError,
    EngineFailure,
)
from kifu.gateway.allowance import Allowance, Reached
from kifu.gateway.endpoint import Endpoint, OutsideAgent, Ran
from kifu.gateway.gateway import Gateway
from kifu.gateway.scripted import Lines
from kifu.records import (
    EnvironmentRef,
    Outcome,
    RolloutKey,
    Sampling,
    StopReason,
    TaskRef,
    ToolCall,
    Trajectory,
    Verdict,
)

ANSWERED = "agent.answered"
"""Event of the last turn: the text that the agent gave as its answer, and that was judged."""
MAX_ANSWER_CHARS = 65_536


class Case(Protocol):
    """One task for an outside agent: what it is told, and how what it leaves behind is judged."""

    @property
    def task(self) -> Task:
        """The task, hidden answers included."""
        ...

    async def begin(self) -> Task:
        """Set the world up; gives the task as the agent gets it."""
        ...

    async def judge(self, ran: Ran) -> Verdict:
        """Judge what the agent left behind.

        Raises:
            VerifierFailure: it cannot be judged, which says nothing about the policy.
        """
        ...

    async def end(self) -> EnvironmentRef | None:
        """Give everything back; says which world it was, where there was one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """How one attempt is made."""

    sampling: Sampling | None
    """Of the rollout; None is the gateway's own."""
    timeout_s: float | None
    """Of the whole attempt; None waits for ever."""
    reached: Reached | None = None
    """Which limit of the owner is reached."""
    calls: Sequence[ToolCall] | None = None
    """A demonstrator's turns, written instead of sampled."""
    keeps_cancelled: bool = True
    """Whether an attempt that the owner stops leaves a record; without one it can be made again under its name."""


async def attempt(
    gateway: Gateway, case: Case, *, agent: OutsideAgent, url: str, key: RolloutKey, terms: Terms
) -> Trajectory:
    """Make one attempt; whatever goes wrong is how it ended.

    Args:
        gateway: records it.
        case: what is attempted.
        agent: attempts it.
        url: address of the gateway.
        key: place in the run.
        terms: how it is made.
    """
    task = case.task
    opened = await gateway.open(
        key,
        TaskRef(id=task.id, family=task.family, split=task.split),
        environment=EnvironmentRef(id=agent.id, version="1", seed=task.seed),
        sampling=terms.sampling,
        allowance=Allowance(terms.reached, None if terms.calls is None else Lines(terms.calls)),
    )
    endpoint = Endpoint(base_url=f"{url}{opened.path}/v1", key=opened.model_key, model=gateway.desk.serving.models[0])
    outcome: Outcome | None = None
    try:
        async with asyncio.timeout(terms.timeout_s):
            told = await case.begin()
            ran = await _ran(gateway, agent, told, endpoint=endpoint, key=key)
            await gateway.judge(key.id, await case.judge(ran))
    except TimeoutError:
        outcome = Outcome(reason=StopReason.TIME_LIMIT, detail=f"the collector allows {terms.timeout_s} s")
    except BoundaryError as failure:
        outcome = Outcome.failed(failure)
    except asyncio.CancelledError:
        with suppress(BoundaryError):  # the attempt is over, and nobody is told how
            await case.end()
        if terms.keeps_cancelled:
            await gateway.seal(key.id, Outcome(reason=StopReason.CANCELLED, detail="the run was stopped"))
        else:
            await gateway.drop(key.id)
        raise
    try:
        world = await case.end()
    except BoundaryError as failure:
        world, outcome = None, Outcome.failed(failure)
    return await gateway.seal(key.id, outcome, environment=world)


async def _ran(gateway: Gateway, agent: OutsideAgent, told: Task, *, endpoint: Endpoint, key: RolloutKey) -> Ran:
    """Let the agent work; one that broke because a limit ended its rollout has left nothing behind."""
    rollout = gateway.rollout(key.id)
    try:
        ran = await agent.run(told, endpoint)
    except AgentFailure as failure:
        if rollout.allowance.cut is not None:
            return Ran()
        if rollout.counts.failed:
            raise EngineFailure(f"{rollout.counts.failed} calls were not answered, and {failure}") from failure
        raise
    if rollout.num_turns:
        rollout.mark(rollout.num_turns - 1, ANSWERED, {"text": ran.text[:MAX_ANSWER_CHARS], **ran.facts})
    return ran


def prompt_of(task: Task) -> str:
    """What a task asks, as text."""
    found = task.data.get("prompt")
    return found if isinstance(found, str) else task.id
