"""Rows hold everything, and the digest is what an outsider computes."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import AlteredError, FormatError, RecordError
from kifu.records import (
    Action,
    Branch,
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
    Segment,
    Span,
    StopReason,
    Support,
    SupportKind,
    Tape,
    TaskRef,
    ToolCall,
    ToolResult,
    Trajectory,
    Trust,
    Turn,
    Verdict,
    as_floats,
    as_ints,
    content_digest,
    from_row,
    from_table,
    to_row,
    to_table,
)

Make = Callable[..., Trajectory]

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**31 - 1)
IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
DETAIL = st.dictionaries(TEXT, JSON, max_size=3)


def same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any part of a record
    """Equal in type and value, field by field, arrays by dtype and content."""
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes() and not other.flags.writeable
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    origin = draw(st.sampled_from(Origin))
    ids = draw(IDS)
    turn = draw(st.integers(0, 5))
    if origin is not Origin.POLICY:
        return Span(origin=origin, turn=turn, token_ids=as_ints(ids))
    sampling = Sampling(
        temperature=draw(st.none() | st.floats(0.1, 2.0)),
        top_p=draw(st.none() | st.floats(0.1, 1.0)),
        top_k=draw(st.none() | st.integers(1, 50)),
        grammar=draw(st.none() | TEXT),
        stop_ids=tuple(draw(st.lists(st.integers(0, 9), max_size=2))),
        stop_strings=tuple(draw(st.lists(TEXT, max_size=2))),
        untrainable=tuple(draw(st.lists(TEXT, max_size=1))),
    )
    supports = [draw(st.none() | support(token)) for token in ids]
    return Span(
        origin=origin,
        turn=turn,
        token_ids=as_ints(ids),
        logprobs=as_floats(draw(st.lists(st.floats(-80, 0, width=32), min_size=len(ids), max_size=len(ids)))),
        policy_version=draw(st.integers(0, 2**40)),
        sampling=sampling,
        support=draw(st.sampled_from([None, tuple(supports)])),
    )


@st.composite
def support(draw: st.DrawFn, token: int) -> Support:
    others = sorted(set(draw(IDS)) - {token})
    kind = draw(st.sampled_from(SupportKind))
    if kind is SupportKind.MASK:
        return Support(kind=kind, ids=as_ints([]), mask=draw(TEXT))
    if kind is SupportKind.NOT_IDS:
        return Support(kind=kind, ids=as_ints(others))
    return Support.of([*others, token, (token + 1) % 2**31])


@st.composite
def turns(draw: st.DrawFn, index: int) -> Turn:
    calls = tuple(ToolCall(name=draw(TEXT), arguments=draw(DETAIL), id=draw(TEXT)) for _ in range(draw(COUNT) % 3))
    return Turn(
        index=index,
        text=draw(TEXT),
        finish=draw(st.sampled_from(Finish)),
        action=Action(sampled=calls, executed=calls[:1], rewriter=draw(TEXT), parse_error=draw(st.none() | TEXT)),
        results=tuple(
            ToolResult(
                call=draw(st.none() | st.integers(0, 3)),
                text=draw(TEXT),
                trust=draw(st.sampled_from(Trust)),
                exit_status=draw(st.none() | st.integers(-1, 255)),
                error=draw(st.none() | TEXT),
                latency_s=draw(FLOAT),
                digest_before=draw(st.none() | TEXT),
                cut_bytes=draw(st.integers(0, 2**40)),
            )
            for _ in range(draw(COUNT) % 2)
        ),
        rewards=draw(st.dictionaries(TEXT, FLOAT, max_size=3)),
        potential=draw(st.none() | FLOAT),
        duration=draw(st.floats(0.5, 9)),
        state_key=draw(st.none() | TEXT),
        events=tuple(Event(kind=draw(TEXT), detail=draw(DETAIL)) for _ in range(draw(COUNT) % 2)),
        estimates=tuple(Estimate(name=draw(TEXT), value=draw(FLOAT), policy_version=1) for _ in range(draw(COUNT) % 2)),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    first = Tape(spans=tuple(draw(st.lists(spans(), max_size=3))))
    second = Tape(parent=0, fork_at=draw(st.integers(0, len(first))), spans=tuple(draw(st.lists(spans(), max_size=2))))
    reason = draw(st.sampled_from(StopReason))
    checks = st.dictionaries(TEXT, st.booleans(), max_size=2)
    outcome = Outcome(reason=reason, detail=draw(TEXT))
    verdict = Verdict(
        success=draw(st.none() | st.booleans()) if not outcome.infra_error else None,
        score=draw(st.none() | FLOAT) if not outcome.infra_error else None,
        world_state_checks=draw(checks),
        safety_checks=draw(checks),
        invalid_actions=draw(COUNT),
        resource_usage=draw(st.dictionaries(TEXT, FLOAT, max_size=2)),
        evidence=draw(st.none() | TEXT),
    )
    branch = Branch(tree=draw(TEXT), parent="p", turn=1, chosen_by="c", restored_by="replay", digest="d")
    return Trajectory(
        key=RolloutKey(
            seed=draw(st.integers(0, 2**62)),
            step=draw(COUNT),
            group=0,
            member=1,
            purpose=draw(st.sampled_from(Purpose)),
        ),
        task=TaskRef(id=draw(TEXT)),
        environment=EnvironmentRef(id="e", version=draw(TEXT), seed=3, final_digest=draw(st.none() | TEXT)),
        provenance=Provenance(tokenizer=draw(TEXT)),
        tapes=(first, second),
        turns=tuple(draw(turns(index)) for index in range(draw(COUNT) % 3)),
        outcome=outcome,
        verdict=draw(st.sampled_from([None, verdict])),
        final_value=draw(st.none() | FLOAT),
        branch=draw(st.sampled_from([None, branch])),
        segment=draw(st.sampled_from([None, Segment(index=2, carried_state="s", carried_history=5)])),
        costs=Costs(seconds=draw(FLOAT)),
    )


@settings(max_examples=60, deadline=None)
@given(trajectories())
def test_a_record_survives_the_table_without_loss(trajectory: Trajectory) -> None:
    table = to_table([trajectory])

    assert table.to_pylist() == [to_row(trajectory)]
    assert same(trajectory, next(from_table(table)))


def test_the_digest_can_be_recomputed_from_the_file_with_json_and_hashlib(make: Make, tmp_path: Path) -> None:
    trajectory = make()
    pq.write_table(to_table([trajectory]), tmp_path / "part.parquet")

    table = pq.read_table(tmp_path / "part.parquet")
    (row,) = table.to_pylist()
    claimed = row.pop("content_digest")
    assert sorted(json.loads(table.schema.metadata[b"kifu_excluded"])) == [
        "content_digest",
        "costs",
        "outcome.detail",
        "turns.results.latency_s",
        "turns.seconds",
        "verdict.resource_usage",
    ]
    del row["costs"], row["outcome"]["detail"], row["verdict"]["resource_usage"]
    for turn in row["turns"]:
        del turn["seconds"]
        for result in turn["results"]:
            del result["latency_s"]
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == claimed == content_digest(trajectory)


def test_measurements_stay_outside_the_digest(make: Make) -> None:
    trajectory = make()
    slow = tuple(
        replace(turn, seconds=9.0, results=tuple(replace(result, latency_s=9.0) for result in turn.results))
        for turn in trajectory.turns
    )
    assert trajectory.verdict is not None
    other = make(
        turns=slow,
        costs=Costs(seconds=99.0),
        verdict=replace(trajectory.verdict, resource_usage={"cpu_s": 4.0}),
        outcome=Outcome(reason=StopReason.SUCCESS, detail="pid 7"),
    )
    assert content_digest(other) == content_digest(trajectory)


@pytest.mark.parametrize(
    "changed",
    [
        {"score": 0.5},
        {"task": TaskRef(id="task-4")},
        {"outcome": Outcome(reason=StopReason.FAILURE)},
        {"provenance": Provenance(tokenizer="other")},
        {"turns": ()},
        {"final_value": 0.0},
        {"member": 1},
    ],
    ids=str,
)
def test_content_changes_the_digest(make: Make, changed: dict[str, object]) -> None:
    assert content_digest(make(**changed)) != content_digest(make())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"final_value": float("nan")}, "final_value is nan"),
        ({"task": TaskRef(id="\udc80")}, "task.id is not text in UTF-8"),
        ({"environment": EnvironmentRef(id="e", version="1", seed=2**63)}, "environment.seed is 9223372036854775808"),
        ({"turns": (Turn(index=0, events=(Event(kind="k", detail={"x": float("inf")}),)),)}, "turn 0: .*finite JSON"),
    ],
    ids=["nan", "surrogate", "large seed", "infinity in JSON"],
)
def test_what_no_column_can_hold_is_refused_by_place(make: Make, changed: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        to_row(make(**changed))


def test_numpy_scalars_of_an_environment_are_stored_as_plain_values(make: Make) -> None:
    scalars: Any = {
        "success": np.bool_(True),
        "score": np.float32(0.5),
        "invalid_actions": np.int64(2),
        "world_state_checks": {"open": np.bool_(False)},
    }
    plain = Verdict(success=True, score=0.5, invalid_actions=2, world_state_checks={"open": False})
    assert to_row(make(verdict=Verdict(**scalars))) == to_row(make(verdict=plain))


def test_a_changed_row_is_altered(make: Make) -> None:
    row = to_row(make())
    row["verdict"]["score"] = 1.0
    with pytest.raises(AlteredError, match="changed after writing"):
        from_row(row)


def test_a_row_of_another_member_is_altered(make: Make) -> None:
    row = {**to_row(make()), "trajectory_id": "train/s7/t00000/g0000/m001/a0"}
    row["content_digest"] = hashlib.sha256(_text_of(row)).hexdigest()
    with pytest.raises(AlteredError, match="its key makes the id"):
        from_row(row)


def _text_of(row: dict[str, Any]) -> bytes:
    plain = json.loads(json.dumps(row))
    del plain["content_digest"], plain["costs"], plain["outcome"]["detail"], plain["verdict"]["resource_usage"]
    for turn in plain["turns"]:
        del turn["seconds"]
        for result in turn["results"]:
            del result["latency_s"]
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def test_an_unknown_enum_member_is_a_newer_format(make: Make) -> None:
    row = to_row(make())
    row["outcome"]["reason"] = "abducted"
    row["content_digest"] = hashlib.sha256(_text_of(row)).hexdigest()
    with pytest.raises(FormatError, match="StopReason `abducted`"):
        from_row(row)
