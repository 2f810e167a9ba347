"""Trajectories as plain rows and back, without loss, and the digest that names their content."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kifu.errors import AlteredError, FormatError, RecordError
from kifu.records.chain import canonical
from kifu.records.outcome import Outcome, StopReason, Verdict
from kifu.records.schema import EXCLUDED, SCHEMA, check_format
from kifu.records.storable import check_storable
from kifu.records.tokens import Floats, Ints, Origin, Sampling, Span, Support, SupportKind, Tape
from kifu.records.trajectory import (
    Branch,
    Costs,
    EnvironmentRef,
    Provenance,
    Purpose,
    RolloutKey,
    Segment,
    TaskRef,
    Trajectory,
)
from kifu.records.turns import Action, Estimate, Event, Finish, ToolCall, ToolResult, Trust, Turn

Row: TypeAlias = dict[str, Any]
"""One row of the table as plain Python values, exactly as pyarrow's ``to_pylist`` gives it."""


def to_row(trajectory: Trajectory) -> Row:
    """The row of a trajectory, with its content digest.

    Raises:
        RecordError: a value that no table can hold: a non-finite number, text that is not UTF-8, too large an integer.
    """
    samplings: dict[Sampling, int] = {}
    tapes = [_tape_row(tape, samplings) for tape in trajectory.tapes]
    row: Row = {
        "trajectory_id": trajectory.id,
        "content_digest": None,
        "key": _plain(trajectory.key, purpose=trajectory.key.purpose.value),
        "task": _plain(trajectory.task),
        "environment": _plain(trajectory.environment),
        "provenance": _plain(trajectory.provenance),
        "samplings": [_sampling_row(sampling) for sampling in samplings],
        "tapes": tapes,
        "turns": [_turn_row(turn) for turn in trajectory.turns],
        "outcome": {"reason": trajectory.outcome.reason.value, "detail": trajectory.outcome.detail},
        "verdict": None if trajectory.verdict is None else _verdict_row(trajectory.verdict),
        "final_value": _float(trajectory.final_value),
        "final_potential": _float(trajectory.final_potential),
        "branch": None if trajectory.branch is None else _plain(trajectory.branch),
        "segment": None if trajectory.segment is None else _plain(trajectory.segment),
        "costs": {name: float(value) for name, value in _plain(trajectory.costs).items()},
    }
    check_storable(row, trajectory.id)
    row["content_digest"] = row_digest(row)
    return row


def row_digest(row: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a row without its excluded columns."""
    return hashlib.sha256(canonical(_without(row, EXCLUDED))).hexdigest()


def content_digest(trajectory: Trajectory) -> str:
    """Names the content of a trajectory; measured times, resource usage and error texts do not enter."""
    return str(to_row(trajectory)["content_digest"])


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a row.

    Raises:
        FormatError: an enum member this reader does not know.
        AlteredError: the row's id or content digest is not that of its content.
    """
    claimed, found = str(row.get("content_digest")), row_digest(row)
    where = f"row {row.get('trajectory_id')}"
    if claimed != found:
        raise AlteredError(
            f"{where}: its content digest is {found[:12]}, the row claims {claimed[:12]}; it was changed after writing"
        )
    try:
        trajectory = _trajectory(row)
    except (KeyError, TypeError) as cause:
        raise FormatError(f"{where}: a column is missing or of another type: {cause}") from cause
    if row["trajectory_id"] != trajectory.id:
        raise AlteredError(f"{where}: its key makes the id {trajectory.id}; it was changed after writing")
    return trajectory


def to_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    """One row per trajectory."""
    return rows_table([to_row(trajectory) for trajectory in trajectories])


def rows_table(rows: Sequence[Row]) -> pa.Table:
    """The table of plain rows."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def from_table(table: pa.Table, *, where: str = "table") -> Iterator[Trajectory]:
    """The trajectories of a table, in order; the format version is checked first."""
    for row in table_rows(table, where=where):
        yield from_row(row)


def table_rows(table: pa.Table, *, where: str) -> list[Row]:
    """The plain rows of a table of a known format."""
    metadata = table.schema.metadata or {}
    found = metadata.get(b"kifu_format", b"")
    if not found.isdigit():
        raise FormatError(f"{where}: no record format in its metadata; it is not a part of a run")
    check_format(int(found), where)
    rows: list[Row] = table.to_pylist()
    return rows


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    samplings = [_sampling(item) for item in row["samplings"]]
    key = row["key"]
    return Trajectory(
        key=RolloutKey(**{**key, "purpose": _member(Purpose, key["purpose"])}),
        task=TaskRef(**row["task"]),
        environment=EnvironmentRef(**row["environment"]),
        provenance=Provenance(**row["provenance"]),
        tapes=tuple(_tape(item, samplings) for item in row["tapes"]),
        turns=tuple(_turn(item) for item in row["turns"]),
        outcome=Outcome(reason=_member(StopReason, row["outcome"]["reason"]), detail=row["outcome"]["detail"]),
        verdict=None if row["verdict"] is None else _verdict(row["verdict"]),
        final_value=row["final_value"],
        final_potential=row["final_potential"],
        branch=None if row["branch"] is None else Branch(**row["branch"]),
        segment=None if row["segment"] is None else Segment(**row["segment"]),
        costs=Costs(**row["costs"]),
    )


def _member(kind: Any, value: str) -> Any:  # noqa: ANN401 - any of the record's enums
    try:
        return kind(value)
    except ValueError as cause:
        raise FormatError(f"{kind.__name__} `{value}` is not known; read the record with a newer kifu") from cause


def _plain(item: Any, /, **changed: object) -> Row:  # noqa: ANN401 - any flat dataclass of the record
    return {name: _scalar(changed.get(name, getattr(item, name))) for name in type(item).__slots__}


def _scalar(value: object) -> object:
    """A numpy scalar as the Python value it stands for."""
    return value.item() if isinstance(value, np.generic) else value


def _named(values: Mapping[str, Any]) -> list[Row]:
    return [{"name": name, "value": _scalar(values[name])} for name in sorted(values)]


def _mapping(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {item["name"]: item["value"] for item in items}


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _json(value: Mapping[str, Any], where: str) -> str:
    try:
        return canonical(dict(value)).decode()
    except (TypeError, ValueError) as cause:
        raise RecordError(f"{where}: {cause}; only finite JSON values can be recorded") from cause


def _tape_row(tape: Tape, samplings: dict[Sampling, int]) -> Row:
    return {
        "parent": tape.parent,
        "fork_at": tape.fork_at,
        "spans": [_span_row(span, samplings) for span in tape.spans],
    }


def _span_row(span: Span, samplings: dict[Sampling, int]) -> Row:
    return {
        "origin": span.origin.value,
        "turn": span.turn,
        "token_ids": span.token_ids.tolist(),
        "logprobs": None if span.logprobs is None else span.logprobs.tolist(),
        "policy_version": span.policy_version,
        "sampling": None if span.sampling is None else samplings.setdefault(span.sampling, len(samplings)),
        "supports": None if span.support is None else [_support_row(item) for item in span.support],
    }


def _support_row(support: Support | None) -> Row | None:
    if support is None:
        return None
    return {"kind": support.kind.value, "ids": support.ids.tolist(), "mask": support.mask}


def _sampling_row(sampling: Sampling) -> Row:
    return _plain(
        sampling,
        temperature=_float(sampling.temperature),
        top_p=_float(sampling.top_p),
        min_p=_float(sampling.min_p),
        stop_ids=list(sampling.stop_ids),
        stop_strings=list(sampling.stop_strings),
        untrainable=list(sampling.untrainable),
    )


def _turn_row(turn: Turn) -> Row:
    where = f"turn {turn.index}"
    return {
        "index": turn.index,
        "tape": turn.tape,
        "start": turn.start,
        "stop": turn.stop,
        "text": turn.text,
        "finish": turn.finish.value,
        "action": {
            "sampled": [_call_row(call, where) for call in turn.action.sampled],
            "executed": [_call_row(call, where) for call in turn.action.executed],
            "rewriter": turn.action.rewriter,
            "parse_error": turn.action.parse_error,
        },
        "results": [_plain(item, trust=item.trust.value, latency_s=float(item.latency_s)) for item in turn.results],
        "rewards": _named({name: float(value) for name, value in turn.rewards.items()}),
        "potential": _float(turn.potential),
        "seconds": float(turn.seconds),
        "duration": float(turn.duration),
        "state_key": turn.state_key,
        "events": [{"kind": item.kind, "detail": _json(item.detail, where)} for item in turn.events],
        "estimates": [_plain(item, value=float(item.value)) for item in turn.estimates],
    }


def _call_row(call: ToolCall, where: str) -> Row:
    return {"name": call.name, "arguments": _json(call.arguments, f"{where}, call `{call.name}`"), "id": call.id}


def _verdict_row(verdict: Verdict) -> Row:
    return _plain(
        verdict,
        score=_float(verdict.score),
        world_state_checks=_named(verdict.world_state_checks),
        format_checks=_named(verdict.format_checks),
        safety_checks=_named(verdict.safety_checks),
        resource_usage=_named({name: float(value) for name, value in verdict.resource_usage.items()}),
    )


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _ints(values: Sequence[int]) -> Ints:
    return _read_only(np.array(values, dtype=np.int32))


def _floats(values: Sequence[float]) -> Floats:
    return _read_only(np.array(values, dtype=np.float32))


def _tape(row: Mapping[str, Any], samplings: Sequence[Sampling]) -> Tape:
    return Tape(
        parent=row["parent"], fork_at=row["fork_at"], spans=tuple(_span(item, samplings) for item in row["spans"])
    )


def _span(row: Mapping[str, Any], samplings: Sequence[Sampling]) -> Span:
    supports = row["supports"]
    return Span(
        origin=_member(Origin, row["origin"]),
        turn=row["turn"],
        token_ids=_ints(row["token_ids"]),
        logprobs=None if row["logprobs"] is None else _floats(row["logprobs"]),
        policy_version=row["policy_version"],
        sampling=None if row["sampling"] is None else samplings[row["sampling"]],
        support=None if supports is None else tuple(_support(item) for item in supports),
    )


def _support(row: Mapping[str, Any] | None) -> Support | None:
    if row is None:
        return None
    return Support(kind=_member(SupportKind, row["kind"]), ids=_ints(row["ids"]), mask=row["mask"])


def _sampling(row: Mapping[str, Any]) -> Sampling:
    tuples = {name: tuple(row[name]) for name in ("stop_ids", "stop_strings", "untrainable")}
    return Sampling(**{**row, **tuples})


def _turn(row: Mapping[str, Any]) -> Turn:
    action = row["action"]
    return Turn(
        **{
            **row,
            "finish": _member(Finish, row["finish"]),
            "action": Action(
                sampled=tuple(_call(item) for item in action["sampled"]),
                executed=tuple(_call(item) for item in action["executed"]),
                rewriter=action["rewriter"],
                parse_error=action["parse_error"],
            ),
            "results": tuple(ToolResult(**{**item, "trust": _member(Trust, item["trust"])}) for item in row["results"]),
            "rewards": _mapping(row["rewards"]),
            "events": tuple(Event(kind=item["kind"], detail=json.loads(item["detail"])) for item in row["events"]),
            "estimates": tuple(Estimate(**item) for item in row["estimates"]),
        }
    )


def _call(row: Mapping[str, Any]) -> ToolCall:
    return ToolCall(name=row["name"], arguments=json.loads(row["arguments"]), id=row["id"])


def _verdict(row: Mapping[str, Any]) -> Verdict:
    names = ("world_state_checks", "format_checks", "safety_checks", "resource_usage")
    return Verdict(**{**row, **{name: _mapping(row[name]) for name in names}})


def _without(value: Any, paths: Sequence[str]) -> Any:  # noqa: ANN401 - any part of a row
    """A copy of nested rows without the named paths; list elements share the path of their list."""
    if isinstance(value, list):
        return [_without(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    here = {path for path in paths if "." not in path}
    below: dict[str, list[str]] = {}
    for path in paths:
        head, dot, rest = path.partition(".")
        if dot:
            below.setdefault(head, []).append(rest)
    return {
        name: _without(item, below[name]) if name in below else item for name, item in value.items() if name not in here
    }
