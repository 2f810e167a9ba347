"""One rollout from reset to record. A failed rollout is data: it comes back as a trajectory with a typed outcome."""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from kifu.envs import Task
from kifu.envs.calling.guard import GuardedEnvironment
from kifu.envs.contract import canonical_state
from kifu.errors import (
    AgentFailure,
    BoundaryError,
    VerifierFailure,
    crossing,
)
from kifu.policy import Sampler
from kifu.records import (
    Costs,
    EnvironmentRef,
    Outcome,
    RolloutKey,
    Segment,
    StopReason,
    TaskRef,
    Trajectory,
    Verdict,
)
from kifu.records.outcome import JUDGED
from kifu.rollout.branch import Departure, Trail
from kifu.rollout.facts import Conversation, Scoring, with_facts
from kifu.rollout.session import EFFECTS_HEAD, Script, Session, settle
from kifu.rollout.setting import Setting
from kifu.sandbox import EffectHead, EffectLog
from kifu.verify.repository import ASSURANCE as IN_PROCESS


async def run_rollout(
    setting: Setting,
    *,
    writer: Sampler | Script,
    key: RolloutKey,
    task: Task,
    segment: Segment | None = None,
    departure: Departure | None = None,
    scoring: Scoring | None = None,
) -> Trajectory:
    """Attempt one task and record it.

    Every failure of environment, verifier, engine or agent becomes an outcome owned by infrastructure, without a
    reward. Cancellation passes through: an interrupted attempt leaves no record.

    Args:
        setting: shared by every rollout of the purpose.
        writer: the sampler, or a demonstrator's script.
        key: place in the run.
        task: what to attempt.
        segment: which piece of an endless interaction this is; ``task`` carries the state it starts from.
        departure: the turn of another rollout of the task where this one begins.
        scoring: what a model is asked about the rollout when it is over; a failed one is not asked about.
    """
    began, started_at = time.perf_counter(), time.time()
    guard = _guard(setting, key, departure)
    session = Session(setting, writer=writer, guard=guard, key=key, task=task)
    verdict: Verdict | None = None
    final_value: float | None = None
    try:
        try:
            await _attempt(setting, session, task, guard=guard, departure=departure)
            if session.outcome is not None and session.outcome.truncated and setting.records_value:
                final_value = await session.final_value()
            if not _left_in_a_call(session, guard):
                verdict = taken(await guard.verify(), setting)
                await _keep_state(setting, guard, session.outcome)
        except BoundaryError as failure:
            session.outcome = Outcome.failed(failure)
        try:
            await guard.close()
        except BoundaryError as failure:  # of the environment, like any other: it counts, and it ends no run
            verdict, final_value = None, None
            session.outcome = Outcome.failed(failure)
        settle(session, guard)
        await asyncio.gather(*session.keeping)
        await _flushed(setting)
        outcome = session.outcome
        if outcome is None:
            outcome = Outcome(reason=StopReason.NATURAL_END, detail="the agent returned")
        trajectory = Trajectory(
            key=key,
            task=TaskRef(id=task.id, family=task.family, split=task.split),
            environment=_environment(guard, task),
            provenance=setting.provenance,
            tapes=session.log.build(),
            turns=tuple(session.log.turns),
            outcome=outcome,
            verdict=verdict,
            final_value=final_value,
            final_potential=guard.potential() if outcome.truncated else None,
            branch=session.branch,
            segment=segment,
            costs=Costs(
                seconds=time.perf_counter() - began,
                generation_s=session.generation_s,
                environment_s=session.environment_s,
                started_at=started_at,
            ),
        )
        return await _told(trajectory, _conversation(session, setting), task=task, scoring=scoring)
    finally:
        for state in session.keeping:
            state.cancel()
        if not isinstance(writer, Script):
            for context in session.contexts:
                writer.release(context)
        with suppress(BoundaryError):  # closed already, unless the attempt was cancelled
            await guard.close()


def _conversation(session: Session, setting: Setting) -> Conversation:
    log = session.log
    return Conversation(messages=log.messages, prompts=log.prompts, renderer=setting.renderer, trust=setting.trust)


async def _told(trajectory: Trajectory, told: Conversation, *, task: Task, scoring: Scoring | None) -> Trajectory:
    """The record with the facts the method asks for; where they cannot be had, that is how the rollout ended."""
    if scoring is None or trajectory.outcome.infra_error:
        return trajectory
    try:
        return await with_facts(trajectory, told, task=task, scoring=scoring)
    except BoundaryError as failure:
        outcome = Outcome.failed(failure)
        return replace(trajectory, outcome=outcome, verdict=None, final_value=None, final_potential=None)


def _guard(setting: Setting, key: RolloutKey, departure: Departure | None) -> GuardedEnvironment:
    return GuardedEnvironment(
        setting.environment,
        timeout_s=setting.limits.tool_seconds,
        isolation=setting.isolation,
        effects=_chain(setting, key, departure),
    )


async def _flushed(setting: Setting) -> None:
    """Make the log of effects durable: a record names no line that is not there."""
    if setting.effects is not None:
        await asyncio.to_thread(setting.effects.flush)


def _chain(setting: Setting, key: RolloutKey, departure: Departure | None) -> EffectLog | None:
    """The rollout's chain in the run's log of effects; a branch leaves its parent's where its first own turn begins."""
    if setting.effects is None:
        return None
    shared = () if departure is None or departure.is_lent else departure.parent.turns[: departure.turn]
    heads = [event.detail for turn in shared for event in turn.events if event.kind == EFFECTS_HEAD]
    parent = None
    if heads:
        last = heads[-1]
        parent = EffectHead(chain=str(last["chain"]), digest=str(last["digest"]), count=int(str(last["count"])))
    return setting.effects.fresh(key.id, parent=parent)


def _environment(guard: GuardedEnvironment, task: Task) -> EnvironmentRef:
    return EnvironmentRef(
        id=guard.environment_id,
        version=guard.environment_version,
        seed=task.seed,
        initial_digest=guard.initial_digest,
        final_digest=guard.final_digest,
    )


async def _attempt(
    setting: Setting, session: Session, task: Task, *, guard: GuardedEnvironment, departure: Departure | None
) -> None:
    limit = setting.limits.seconds
    try:
        async with asyncio.timeout(limit):
            await session.begin()
            trail: Session | Trail = session
            if setting.branchable is not None:
                trail = await Trail.begin(setting, session, guard=guard, departure=departure)
            with crossing(AgentFailure, f"agent {setting.agent.id}"):
                await setting.agent.run(task, trail, trail)
    except TimeoutError:
        if session.outcome is None:
            session.outcome = Outcome(reason=StopReason.TIME_LIMIT, detail=f"the collector allows {limit} s")


async def _keep_state(setting: Setting, guard: GuardedEnvironment, outcome: Outcome | None) -> None:
    """Keep the state of a cut under the digest that the record names as its last."""
    if setting.states is not None and outcome is not None and outcome.truncated:
        state, _ = await guard.snapshot()
        await asyncio.to_thread(setting.states.put, canonical_state(state))


def taken(verdict: Verdict, setting: Setting) -> Verdict:
    """The verdict, where its assurance is one that this run takes.

    Raises:
        VerifierFailure: it is not; the attempt has no reward.
    """
    if verdict.assurance == IN_PROCESS and not setting.takes_in_process:
        raise VerifierFailure(
            f"a verdict of {verdict.verifier or 'a verifier'} has assurance `in_process`, and the experiment "
            'takes none; declare Capabilities(in_process=True) and set environment.assurance = "in_process"'
        )
    if verdict.assurance == JUDGED and not setting.takes_judged:
        raise VerifierFailure(
            f"a verdict of {verdict.verifier or 'a verifier'} has assurance `judge`, and the experiment's method is "
            "paid by programs alone; give the environment a verifier that is a program, or use grpo or ppo"
        )
    return verdict


def _left_in_a_call(session: Session, guard: GuardedEnvironment) -> bool:
    """Whether time ran out while the environment was working: a cut, and nobody knows the state to judge it."""
    return session.outcome is not None and session.outcome.reason is StopReason.TIME_LIMIT and guard.is_lost
