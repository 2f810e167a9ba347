"""Trajectories with a given outcome, for tests of summaries."""

from collections.abc import Callable

import pytest

from kifu.records import (
    Action,
    Costs,
    EnvironmentRef,
    Origin,
    Outcome,
    Provenance,
    Purpose,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
    as_floats,
    as_ints,
)

Make = Callable[..., Trajectory]


def _make(
    task: str,
    success: bool | None,
    *,
    member: int = 0,
    attempt: int = 0,
    family: str = "red",
    reason: StopReason = StopReason.SUCCESS,
    turns: int = 1,
    tokens: int = 2,
    started_at: float = 0.0,
    purpose: Purpose = Purpose.EVALUATION,
    state: str | None = None,
    safety: dict[str, bool] | None = None,
) -> Trajectory:
    verdict = Verdict(success=success, safety_checks=safety or {}, verifier="door/1", invalid_actions=1)
    span = Span(
        origin=Origin.POLICY,
        turn=0,
        token_ids=as_ints([1] * tokens),
        logprobs=as_floats([-0.5] * tokens),
        policy_version=3,
        sampling=Sampling(),
    )
    call = ToolCall(name="inspect")
    turn_list = tuple(
        Turn(
            index=at,
            stop=tokens,
            action=Action(sampled=(call,), executed=(call,), parse_error="no such word" if at == 2 else None),
            results=(ToolResult(call=0, text="x", latency_s=0.25, error="jammed" if at == 1 else None),),
        )
        for at in range(turns)
    )
    return Trajectory(
        key=RolloutKey(seed=0, step=0, group=sum(task.encode()), member=member, attempt=attempt, purpose=purpose),
        task=TaskRef(id=task, family=family, split="held_out"),
        environment=EnvironmentRef(id="door", version="1", seed=0, initial_digest=state),
        provenance=Provenance(),
        tapes=(Tape(spans=(span,)),),
        turns=turn_list,
        outcome=Outcome(reason=reason),
        verdict=None if Outcome(reason=reason).infra_error else verdict,
        costs=Costs(seconds=2.0, generation_s=1.0, environment_s=0.75, started_at=started_at),
    )


@pytest.fixture
def make() -> Make:
    """Build one trajectory: ``make(task, success, ...)``."""
    return _make
