"""The only door through which a rollout calls an environment: time limits, attribution, clean text, digests.

Whatever an environment does — raise, hang, return nonsense, print ten megabytes — comes out of here as a value of the
contract or as a failure attributed to its boundary. A hung call costs its rollout and one thread, never the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from kifu.envs.calling.boundary import Boundary
from kifu.envs.calling.pool import SHARED, WorkerPool
from kifu.envs.calling.process import ProcessEnvironment, process_factory
from kifu.envs.contract import Environment
from kifu.envs.effects import Effect
from kifu.envs.spec import Observation, Reply, Snapshot, Task, ToolSpec
from kifu.envs.text import clip, visible
from kifu.envs.view import View, look
from kifu.errors import UsageError, VerifierFailure
from kifu.records import ToolCall, Verdict
from kifu.sandbox import EffectLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What one call gave; everything a `kifu.records.ToolResult` needs."""

    reply: Reply
    latency_s: float
    """Wall seconds inside the environment; measured."""
    digest_before: str | None
    cut_bytes: int


class GuardedEnvironment:
    """One instance of an environment, for one rollout. Calls must not overlap.

    Args:
        factory: makes the instance; an `Environment` class, or any callable without arguments.
        timeout_s: wall seconds one call may take, counted from when it starts.
        isolation: ``thread``, or ``process`` for code that may hang for good or bring its process down; then the
            factory must be a class that can be imported by name.
        pool: threads to run on; the shared pool when None.
        effects: chain that every call is written to before and after it; None logs nothing.
    """

    def __init__(
        self,
        factory: Callable[[], Environment],
        *,
        timeout_s: float = 30.0,
        isolation: str = "thread",
        pool: WorkerPool | None = None,
        effects: EffectLog | None = None,
    ) -> None:
        if isolation not in ("thread", "process"):
            raise UsageError(f'isolation: found {isolation!r}, expected "thread" or "process"')
        if not timeout_s > 0:
            raise UsageError(f"timeout_s: found {timeout_s}, expected > 0 seconds")
        self._world = _World(process_factory(factory) if isolation == "process" else factory, effects)
        self.effects = effects
        """Chain of this episode."""
        self._declared = isinstance(factory, type)
        self._boundary = Boundary(pool or SHARED, timeout_s=timeout_s, kill=self._world.kill)
        self._closed = False
        self.view = View()
        """As of the last call that returned."""
        self.initial_digest: str | None = None
        """State digest right after reset."""
        self.environment_id, self.environment_version, self.instructions = _declared(factory)

    @property
    def final_digest(self) -> str | None:
        """State digest after the last call that returned."""
        return self.view.digest

    @property
    def is_lost(self) -> bool:
        """Whether the state is unknown: a call raised, hung, was left running or returned nonsense."""
        return self._boundary.failed

    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools as of the last call."""
        return self.view.tools

    def allowed(self) -> tuple[str, ...] | None:
        """Phase mask as of the last call."""
        return self.view.allowed

    def potential(self) -> float | None:
        """Potential as of the last call."""
        return self.view.potential

    def state_key(self) -> str | None:
        """State key as of the last call."""
        return self.view.state_key

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make the instance when there is none yet, and put it into the initial state of ``task``.

        Raises:
            EnvironmentFailure: it raised, hung or returned nonsense.
        """
        where = f"{self.environment_id}: reset"
        found, _, self.view = await self._boundary.run(
            where, lambda: self._world.begin().reset(task, seed), look=self._world.look
        )
        if not self._declared:
            self.environment_id, self.environment_version, self.instructions = _declared(self._world.present)
        self.initial_digest = self.view.digest
        if isinstance(found, str | bytes):
            found = Observation(text=visible(found))
        if not isinstance(found, Observation) or not isinstance(found.text, str):
            why = f"returned {type(found).__name__}, expected str or Observation"
            raise self._boundary.nonsense(where, why)
        return replace(found, text=clip(visible(found.text))[0])

    async def call(self, call: ToolCall) -> Called:
        """Execute one call. A call that does not fit the tools is answered by ``invalid`` and the episode goes on.

        Raises:
            EnvironmentFailure: it raised, hung or returned nonsense.
        """
        where, before = f"{self.environment_id}: tool `{call.name}`", self.view.digest
        with Effect.of(self.effects, call, before) as effect:
            found, latency_s, self.view = await self._boundary.run(
                where, lambda: _caught(lambda: self._world.present.step(call)), look=self._world.look
            )
            effect.after(found, self.view.digest, latency_s)
        if isinstance(found, UsageError):
            return await self.reject(str(found))
        reply, cut_bytes = _shown(self._boundary, where, found)
        return Called(reply=reply, latency_s=latency_s, digest_before=before, cut_bytes=cut_bytes)

    async def reject(self, error: str) -> Called:
        """Let the environment answer a turn that is no call of its tools.

        Raises:
            EnvironmentFailure: it raised, hung or returned nonsense.
        """
        where, before = f"{self.environment_id}: invalid", self.view.digest
        found, latency_s, self.view = await self._boundary.run(
            where, lambda: self._world.present.invalid(error), look=self._world.look
        )
        reply, cut_bytes = _shown(self._boundary, where, found)
        if not reply.error:
            reply = replace(reply, error=clip(visible(error))[0])
        return Called(reply=reply, latency_s=latency_s, digest_before=before, cut_bytes=cut_bytes)

    async def answered(self, text: str) -> None:
        """Tell the environment the policy's final message, before `verify`.

        Raises:
            EnvironmentFailure: it raised or hung.
        """
        where = f"{self.environment_id}: answered"
        _, _, self.view = await self._boundary.run(
            where, lambda: self._world.present.answered(text), look=self._world.look
        )

    async def verify(self) -> Verdict:
        """Judge the world as it is now.

        Raises:
            VerifierFailure: it raised, hung, returned nonsense or changed the state.
        """
        where, before = f"{self.environment_id}: verify", self.view.digest
        found, _, self.view = await self._boundary.run(
            where, lambda: self._world.present.verify(), look=self._world.look, failure=VerifierFailure
        )
        if not isinstance(found, Verdict):
            raise self._boundary.nonsense(where, f"returned {type(found).__name__}, expected Verdict", VerifierFailure)
        if self.view.digest != before:
            raise self._boundary.nonsense(where, "changed the state; it may only look at it", VerifierFailure)
        return found

    async def snapshot(self) -> tuple[Snapshot, str]:
        """The state and its digest.

        Raises:
            EnvironmentFailure: it raised, hung, or the environment offers no snapshot.
        """
        where = f"{self.environment_id}: snapshot"
        found, _, self.view = await self._boundary.run(
            where, lambda: self._world.present.snapshot(), look=self._world.look
        )
        if self.view.digest is None:
            raise self._boundary.nonsense(where, "has no state digest, so a restored state could not be checked")
        return found, self.view.digest

    async def restore(self, ref: Snapshot, *, digest: str) -> None:
        """Become the state of a snapshot; call `reset` with the same task first.

        Raises:
            EnvironmentFailure: it raised, hung, or the state it is in now has another digest.
        """
        where = f"{self.environment_id}: restore"
        _, _, self.view = await self._boundary.run(
            where, lambda: self._world.present.restore(ref), look=self._world.look
        )
        if self.view.digest != digest:
            why = f"gave state digest {self.view.digest}, expected {digest}: the snapshot is incomplete or altered"
            raise self._boundary.nonsense(where, why)

    async def close(self) -> None:
        """Close the instance once. After a call that hangs, it is closed as soon as that call returns.

        Raises:
            EnvironmentFailure: close raised or hung.
        """
        if self._closed:
            return
        self._closed = True
        if self._boundary.after_stuck(self._world.close_quietly) or self._world.instance is None:
            return
        self._boundary.failed = False
        try:
            await self._boundary.run(f"{self.environment_id}: close", self._world.close)
        except asyncio.CancelledError:
            self._boundary.after_stuck(self._world.close_quietly)  # left before it began, it is closed all the same
            raise


def _shown(boundary: Boundary, where: str, found: object) -> tuple[Reply, int]:
    """What a tool or ``invalid`` returned as a clean reply, and the number of bytes cut from its text."""
    if isinstance(found, str | bytes):
        found = Reply(text=visible(found))
    if not isinstance(found, Reply):
        raise boundary.nonsense(where, f"returned {type(found).__name__}, expected str or Reply")
    text, cut_bytes = clip(visible(found.text))
    error = None if found.error is None else clip(visible(str(found.error)))[0]
    return replace(found, text=text, error=error), cut_bytes


class _World:
    """The instance, made on the thread that first needs it."""

    def __init__(self, factory: Callable[[], Environment], effects: EffectLog | None) -> None:
        self._factory = factory
        self._effects = effects
        self._ended = False
        self.instance: Environment | None = None

    def begin(self) -> Environment:
        """The instance, made now when there is none."""
        if self.instance is None:
            made: object = self._factory()
            if not isinstance(made, Environment):
                raise TypeError(f"the factory returned {type(made).__name__}, expected an Environment")
            self.instance = made
            if self._effects is not None:
                made.effect_log = self._effects
        return self.instance

    @property
    def present(self) -> Environment:
        """The instance that reset made."""
        if self.instance is None:
            raise RuntimeError("reset comes first")
        return self.instance

    def look(self) -> View:
        """What it says about its state."""
        return look(self.present)

    def close_quietly(self) -> None:
        """Close after a failure that is already reported."""
        with suppress(Exception):  # its rollout has already failed for another reason
            self.close()

    def close(self) -> Any:  # noqa: ANN401  # what the environment's own close returns
        """Close the instance, once."""
        if self.instance is None or self._ended:
            return None
        self._ended = True
        return self.instance.close()

    def kill(self) -> None:
        """End a call that is left running, where that is possible."""
        if isinstance(self.instance, ProcessEnvironment):
            self.instance.kill()


def _declared(source: Any) -> tuple[str, str, str]:  # noqa: ANN401  # a class, an instance or any callable
    """Id, version and instructions that a class, an instance or a factory declares."""
    name = source.__name__ if hasattr(source, "__name__") else type(source).__name__
    return (
        str(getattr(source, "id", "") or name),
        str(getattr(source, "version", "1")),
        str(getattr(source, "instructions", "")),
    )


def _caught(step: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever foreign code returns
    """The step's result or awaitable; a UsageError becomes the value, also one raised while awaiting."""
    try:
        found = step()
    except UsageError as error:
        return error
    return _caught_awaiting(found) if isawaitable(found) else found


async def _caught_awaiting(found: Awaitable[Any]) -> Any:  # noqa: ANN401
    try:
        return await found
    except UsageError as error:
        return error
