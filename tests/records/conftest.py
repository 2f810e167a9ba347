"""Records made by hand for the tests of this room."""

from collections.abc import Callable

import pytest

from kifu.records import (
    Action,
    Costs,
    EnvironmentRef,
    Estimate,
    Event,
    Finish,
    Origin,
    Outcome,
    Provenance,
    Purpose,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Support,
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

SAMPLING = Sampling(temperature=0.6, top_p=0.9, stop_ids=(2,), stream="0/0/0", engine="hf/cpu")


def _tapes(member: int) -> tuple[Tape, Tape]:
    """Prompt of 3, turn 0 of 2 sampled tokens and a forced one, an answer of 2; the second tape leaves it at 6."""
    offset = 10 * member
    first = Tape(
        spans=(
            Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([1, 2, 3])),
            Span(
                origin=Origin.POLICY,
                turn=0,
                token_ids=as_ints([offset + 10, offset + 11]),
                logprobs=as_floats([-0.5, -0.25]),
                policy_version=0,
                sampling=SAMPLING,
                support=(Support.of([offset + 10, offset + 12]), None),
            ),
            Span(origin=Origin.CONTROLLER, turn=0, token_ids=as_ints([7])),
            Span(origin=Origin.ENVIRONMENT, turn=0, token_ids=as_ints([8, 9])),
        )
    )
    second = Tape(
        parent=0,
        fork_at=6,
        spans=(
            Span(
                origin=Origin.POLICY,
                turn=1,
                token_ids=as_ints([offset + 13]),
                logprobs=as_floats([-0.1]),
                policy_version=1,
                sampling=SAMPLING,
            ),
        ),
    )
    return first, second


def _turns() -> tuple[Turn, Turn]:
    call = ToolCall(name="open", arguments={"colour": "réd", "n": 1, "deep": {"a": [1.5, None, True]}}, id="c0")
    first = Turn(
        index=0,
        tape=0,
        start=3,
        stop=6,
        text="open red",
        action=Action(sampled=(call,), executed=(call,)),
        results=(ToolResult(call=0, text="opened", latency_s=0.125, exit_status=0, digest_before="d0"),),
        rewards={"shaping": 0.5, "format": 1.0},
        potential=0.25,
        seconds=0.5,
        events=(Event(kind="memory.read", detail={"key": "k", "score": 0.5}),),
        estimates=(Estimate(name="value", value=0.75, policy_version=0),),
    )
    return first, Turn(index=1, tape=1, start=6, stop=7, text="done", finish=Finish.LENGTH)


@pytest.fixture
def make() -> Callable[..., Trajectory]:
    """Builds a two-turn record on two tapes; keyword arguments replace its fields."""

    def build(
        *, step: int = 0, group: int = 0, member: int = 0, score: float | None = 0.75, **changed: object
    ) -> Trajectory:
        fields: dict[str, object] = {
            "key": RolloutKey(seed=7, step=step, group=group, member=member, purpose=Purpose.TRAIN),
            "task": TaskRef(id="task-3", family="doors"),
            "environment": EnvironmentRef(
                id="key_door", version="1", seed=2**40 + 1, initial_digest="i0", final_digest="f0"
            ),
            "provenance": Provenance(protocol="p", tokenizer="t", template="m", parser="a", weights="w"),
            "tapes": _tapes(member),
            "turns": _turns(),
            "outcome": Outcome(reason=StopReason.SUCCESS, detail="door open"),
            "verdict": Verdict(
                success=True,
                score=score,
                world_state_checks={"door": True, "box": False},
                resource_usage={"cpu_s": 0.5},
                verifier="key_door/1",
            ),
            "costs": Costs(seconds=1.5, started_at=1e9),
        }
        return Trajectory(**{**fields, **changed})  # type: ignore[arg-type]

    return build
