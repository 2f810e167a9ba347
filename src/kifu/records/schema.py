"""The table records are stored in: one row per trajectory, plain nested columns, a format version.

Only integers, floats, booleans, strings, lists and structs occur, so any Parquet reader can read a part. Open-ended
objects (tool arguments, event details) are JSON strings; mappings are lists of ``{name, value}`` sorted by name.
"""

import json

import pyarrow as pa

from kifu.errors import FormatError

FORMAT_VERSION = 1
"""Raised by any change of a column, an enum member or the canonical form."""

EXCLUDED: tuple[str, ...] = (
    "content_digest",
    "costs",
    "outcome.detail",
    "turns.results.latency_s",
    "turns.seconds",
    "verdict.resource_usage",
)
"""Columns outside the content digest: measured times, resource usage, texts that may quote host facts."""


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def _named(value: pa.DataType) -> pa.DataType:
    return _list(_struct(name=pa.string(), value=value))


_SAMPLING = _struct(
    temperature=pa.float64(),
    top_p=pa.float64(),
    top_k=pa.int32(),
    min_p=pa.float64(),
    grammar=pa.string(),
    dialect=pa.string(),
    stop_ids=_list(pa.int32()),
    stop_strings=_list(pa.string()),
    stream=pa.string(),
    engine=pa.string(),
    dtype=pa.string(),
    untrainable=_list(pa.string()),
)
_SUPPORT = _struct(kind=pa.string(), ids=_list(pa.int32()), mask=pa.string())
_SPAN = _struct(
    origin=pa.string(),
    turn=pa.int32(),
    token_ids=_list(pa.int32()),
    logprobs=_list(pa.float32()),
    policy_version=pa.int64(),
    sampling=pa.int32(),
    supports=_list(_SUPPORT),
)
_TAPE = _struct(parent=pa.int32(), fork_at=pa.int32(), spans=_list(_SPAN))
_CALL = _struct(name=pa.string(), arguments=pa.string(), id=pa.string())
_ACTION = _struct(sampled=_list(_CALL), executed=_list(_CALL), rewriter=pa.string(), parse_error=pa.string())
_RESULT = _struct(
    call=pa.int32(),
    text=pa.string(),
    trust=pa.string(),
    exit_status=pa.int32(),
    error=pa.string(),
    latency_s=pa.float64(),
    digest_before=pa.string(),
    cut_bytes=pa.int64(),
)
_TURN = _struct(
    index=pa.int32(),
    tape=pa.int32(),
    start=pa.int32(),
    stop=pa.int32(),
    text=pa.string(),
    finish=pa.string(),
    action=_ACTION,
    results=_list(_RESULT),
    rewards=_named(pa.float64()),
    potential=pa.float64(),
    seconds=pa.float64(),
    duration=pa.float64(),
    state_key=pa.string(),
    events=_list(_struct(kind=pa.string(), detail=pa.string())),
    estimates=_list(_struct(name=pa.string(), value=pa.float64(), policy_version=pa.int64())),
)
_VERDICT = _struct(
    success=pa.bool_(),
    score=pa.float64(),
    world_state_checks=_named(pa.bool_()),
    format_checks=_named(pa.bool_()),
    safety_checks=_named(pa.bool_()),
    invalid_actions=pa.int32(),
    resource_usage=_named(pa.float64()),
    infra_status=pa.string(),
    assurance=pa.string(),
    verifier=pa.string(),
    evidence=pa.string(),
)
_BRANCH = _struct(
    tree=pa.string(),
    parent=pa.string(),
    turn=pa.int32(),
    chosen_by=pa.string(),
    restored_by=pa.string(),
    digest=pa.string(),
)

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("trajectory_id", pa.string()),
        pa.field("content_digest", pa.string()),
        pa.field(
            "key",
            _struct(
                seed=pa.int64(),
                step=pa.int32(),
                group=pa.int32(),
                member=pa.int32(),
                attempt=pa.int32(),
                purpose=pa.string(),
            ),
        ),
        pa.field("task", _struct(id=pa.string(), family=pa.string(), split=pa.string())),
        pa.field(
            "environment",
            _struct(
                id=pa.string(),
                version=pa.string(),
                seed=pa.int64(),
                initial_digest=pa.string(),
                final_digest=pa.string(),
            ),
        ),
        pa.field(
            "provenance",
            _struct(
                protocol=pa.string(),
                tokenizer=pa.string(),
                template=pa.string(),
                parser=pa.string(),
                weights=pa.string(),
                history=pa.string(),
            ),
        ),
        pa.field("samplings", _list(_SAMPLING)),
        pa.field("tapes", _list(_TAPE)),
        pa.field("turns", _list(_TURN)),
        pa.field("outcome", _struct(reason=pa.string(), detail=pa.string())),
        pa.field("verdict", _VERDICT),
        pa.field("final_value", pa.float64()),
        pa.field("final_potential", pa.float64()),
        pa.field("branch", _BRANCH),
        pa.field("segment", _struct(index=pa.int32(), carried_state=pa.string(), carried_history=pa.int32())),
        pa.field(
            "costs",
            _struct(
                seconds=pa.float64(),
                generation_s=pa.float64(),
                environment_s=pa.float64(),
                waiting_s=pa.float64(),
                started_at=pa.float64(),
            ),
        ),
    ],
    metadata={"kifu_format": str(FORMAT_VERSION), "kifu_excluded": json.dumps(EXCLUDED)},
)
"""Schema of every part; its metadata carries the format version and the excluded columns."""


def check_format(found: object, where: str) -> None:
    """Refuse a format this reader does not know."""
    if found != FORMAT_VERSION:
        raise FormatError(
            f"{where}: record format {found}, this kifu reads up to {FORMAT_VERSION}; read it with a newer kifu"
        )
