"""Rollouts of an agent outside: its calls are heard by a gateway that serves the run's own sampler.

Whatever the agent does becomes the same record as a rollout inside, so that everything after it is the same.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from kifu.envs import GuardedEnvironment, Task
from kifu.envs.suites.jsonl import as_verdict
from kifu.errors import VerifierFailure, crossing
from kifu.gateway import ALTERNATIVES, Case, Forked, Gateway, OutsideAgent, Ran, Serving, Terms, attempt
from kifu.gateway.listening import grammars, listening
from kifu.policy import Engine
from kifu.records import BlobStore, EnvironmentRef, RolloutKey, RunStore, Trajectory, Verdict
from kifu.render import ChatRenderer
from kifu.rollout import Script, Setting
from kifu.rollout.run import taken
from kifu.training.experiment.outside_agent import Outsider
from kifu.training.experiment.prepare import Prepared


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Heard:
    """A gateway that listens, and an agent for it."""

    gateway: Gateway
    url: str
    agent: OutsideAgent
    stack: AsyncExitStack


class OutsideRollouts:
    """Makes rollouts of an agent outside. The gateway starts with the first; `close` ends it on the same event loop.

    Args:
        outsider: the agent and who judges it.
        engine: samples.
        renderer: of its model.
        store: takes every call and record.
        blobs: takes bitmaps of supports.
        max_context: tokens of one context.
    """

    def __init__(
        self,
        outsider: Outsider,
        *,
        engine: Engine,
        renderer: ChatRenderer,
        store: RunStore,
        blobs: BlobStore,
        max_context: int,
    ) -> None:
        self._outsider = outsider
        self._engine = engine
        self._renderer = renderer
        self._store = store
        self._blobs = blobs
        self._max_context = max_context
        self._heard: _Heard | None = None
        self._starting = asyncio.Lock()

    async def run(self, key: RolloutKey, task: Task, *, setting: Setting, script: Script | None) -> Trajectory:
        """Attempt one task and record it; the record is durable on return.

        Every failure becomes an outcome. Cancellation passes through: an interrupted attempt leaves no record.

        Args:
            key: place in the run.
            task: what to attempt.
            setting: of the purpose.
            script: a demonstrator's calls, written where the policy would write.
        """
        heard = await self._started(setting)
        terms = Terms(
            sampling=setting.sampling,
            timeout_s=setting.limits.seconds,
            reached=setting.limits.reached,
            calls=None if script is None else script.calls,
            keeps_cancelled=False,
        )
        case: Case = _Episode(self._outsider, task, setting=setting)
        return await attempt(heard.gateway, case, agent=heard.agent, url=heard.url, key=key, terms=terms)

    async def close(self) -> None:
        """End the gateway and the agent's processes; the next rollout starts new ones."""
        heard, self._heard = self._heard, None
        if heard is not None:
            await heard.stack.aclose()

    async def _started(self, setting: Setting) -> _Heard:
        async with self._starting:
            if self._heard is None:
                self._heard = await self._start(setting)
            return self._heard

    async def _start(self, setting: Setting) -> _Heard:
        gateway = Gateway(
            sampler=self._engine.sampler,
            renderer=self._renderer,
            store=self._store,
            serving=Serving(
                sampling=setting.sampling,
                max_new_tokens=setting.max_new_tokens,
                max_context=self._max_context,
                alternatives=ALTERNATIVES,
                provenance=setting.provenance,
            ),
            blobs=self._blobs,
            bitmaps=self._engine.bitmaps,
            constrain=grammars(self._renderer),
        )
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(listening(gateway))
            agent = self._outsider.make()
            if isinstance(agent, Forked):
                stack.push_async_callback(agent.close)
            return _Heard(gateway=gateway, url=url, agent=agent, stack=stack.pop_all())


def outside_rollouts(
    prepared: Prepared, engine: Engine, *, store: RunStore, blobs: BlobStore
) -> OutsideRollouts | None:
    """What makes the rollouts of an experiment's agent outside; None where kifu's own acts.

    Args:
        prepared: the experiment.
        engine: samples.
        store: takes every call and record.
        blobs: takes bitmaps of supports.
    """
    if prepared.outsider is None:
        return None
    assert isinstance(prepared.renderer, ChatRenderer)
    return OutsideRollouts(
        prepared.outsider,
        engine=engine,
        renderer=prepared.renderer,
        store=store,
        blobs=blobs,
        max_context=prepared.max_tokens,
    )


class _Episode:
    """Implements `Case`: the environment asks and judges, what happens between is the agent's own."""

    def __init__(self, outsider: Outsider, task: Task, *, setting: Setting) -> None:
        self.task = task
        self._outsider = outsider
        self._setting = setting
        self._guard = GuardedEnvironment(
            setting.environment, timeout_s=setting.limits.tool_seconds, isolation=setting.isolation
        )

    async def begin(self) -> Task:
        """The first observation is the prompt; of the task's data the agent gets what the experiment names."""
        shown = await self._guard.reset(self.task, self.task.seed)
        given = {name: self.task.data[name] for name in self._outsider.gives if name in self.task.data}
        return replace(self.task, data={**given, "prompt": shown.text})

    async def judge(self, ran: Ran) -> Verdict:
        """The verifier's word on the answer, or the environment's once it has heard it; silence is no answer."""
        rule = self._outsider.verifier
        if rule is None:
            if ran.text:
                await self._guard.answered(ran.text)
            return taken(await self._guard.verify(), self._setting)
        if not ran.text:
            return Verdict(success=False, format_checks={"answered": False}, assurance="text", verifier="silence/1")
        with crossing(VerifierFailure, f"verifying {self.task.id}"):
            found = await asyncio.to_thread(rule, ran.text, self.task)
            verdict = as_verdict(found, verifier=getattr(rule, "__qualname__", "verifier"))
        return taken(verdict, self._setting)

    async def end(self) -> EnvironmentRef:
        """Close the world and name it."""
        guard = self._guard
        await guard.close()
        return EnvironmentRef(
            id=guard.environment_id,
            version=guard.environment_version,
            seed=self.task.seed,
            initial_digest=guard.initial_digest,
            final_digest=guard.final_digest,
        )
