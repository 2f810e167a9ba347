"""The published view of a record: one row per tape, columns under the names of the record contract.

Token columns cover the tape's whole sequence; ``policy_mask`` is set only on the tokens this tape sampled itself, so
that over all rows of a trajectory each sampled token is counted once. Turn columns list the turns written on this tape.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from kifu.records.chain import canonical
from kifu.records.tokens import Origin, Span
from kifu.records.trajectory import Trajectory
from kifu.records.turns import ToolCall, Turn

_TEXTS = pa.list_(pa.string())
_NAMED = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))

VIEW_SCHEMA: pa.Schema = pa.schema(
    [
        ("task_id", pa.string()),
        ("trajectory_id", pa.string()),
        ("tape", pa.int32()),
        ("environment_id", pa.string()),
        ("environment_version", pa.string()),
        ("initial_state_id", pa.string()),
        ("reset_seed", pa.int64()),
        ("policy_version", pa.list_(pa.int64())),
        ("token_ids", pa.list_(pa.int32())),
        ("policy_mask", pa.list_(pa.bool_())),
        ("behaviour_logprobs", pa.list_(pa.float32())),
        ("turn_ids", pa.list_(pa.int32())),
        ("action_text", _TEXTS),
        ("parsed_action", _TEXTS),
        ("observations", pa.list_(_TEXTS)),
        ("reward_components", pa.list_(_NAMED)),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("infra_error", pa.bool_()),
        ("stop_reason", pa.string()),
        ("wall_clock_time", pa.float64()),
        ("tool_latency", pa.list_(pa.list_(pa.float64()))),
        ("verifier_version", pa.string()),
        ("tokenizer_digest", pa.string()),
        ("template_digest", pa.string()),
        ("parser_digest", pa.string()),
        ("state_digest_before_call", pa.list_(_TEXTS)),
    ]
)
"""Columns of `view_table`."""


def view_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    """The view of trajectories as an Arrow table, one row per tape."""
    rows = [row for trajectory in trajectories for row in view_rows(trajectory)]
    return pa.Table.from_pylist(rows, schema=VIEW_SCHEMA)


def view_rows(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The view of one trajectory, one row per tape."""
    shared = _episode(trajectory)
    return [{**shared, **_tape(trajectory, tape)} for tape in range(len(trajectory.tapes))]


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    environment, provenance, outcome = trajectory.environment, trajectory.provenance, trajectory.outcome
    return {
        "task_id": trajectory.task.id,
        "trajectory_id": trajectory.id,
        "environment_id": environment.id,
        "environment_version": environment.version,
        "initial_state_id": environment.initial_digest,
        "reset_seed": environment.seed,
        "terminated": outcome.terminated,
        "truncated": outcome.truncated,
        "infra_error": outcome.infra_error,
        "stop_reason": outcome.reason.value,
        "wall_clock_time": trajectory.costs.seconds,
        "verifier_version": None if trajectory.verdict is None else trajectory.verdict.verifier,
        "tokenizer_digest": provenance.tokenizer,
        "template_digest": provenance.template,
        "parser_digest": provenance.parser,
    }


def _tape(trajectory: Trajectory, tape: int) -> dict[str, Any]:
    own = trajectory.tapes[tape].spans
    spans = trajectory.tape_spans(tape)
    turns = [turn for turn in trajectory.turns if turn.tape == tape]
    masked = [(span, position >= len(spans) - len(own)) for position, span in enumerate(spans)]
    return {
        "tape": tape,
        "policy_version": [_version(own, turn) for turn in turns],
        "token_ids": trajectory.tape_ids(tape).tolist(),
        "policy_mask": [is_own and span.origin is Origin.POLICY for span, is_own in masked for _ in range(len(span))],
        "behaviour_logprobs": [value for span, is_own in masked for value in _logprobs(span, is_own=is_own)],
        "turn_ids": [span.turn for span in spans for _ in range(len(span))],
        "action_text": [turn.text for turn in turns],
        "parsed_action": [_action(turn) for turn in turns],
        "observations": [[result.text for result in turn.results] for turn in turns],
        "reward_components": [
            [{"name": name, "value": float(turn.rewards[name])} for name in sorted(turn.rewards)] for turn in turns
        ],
        "tool_latency": [[float(result.latency_s) for result in turn.results] for turn in turns],
        "state_digest_before_call": [[result.digest_before for result in turn.results] for turn in turns],
    }


def _logprobs(span: Span, *, is_own: bool) -> list[float | None]:
    if not is_own or span.logprobs is None:
        return [None] * len(span)
    found: list[float | None] = span.logprobs.tolist()
    return found


def _version(spans: tuple[Span, ...], turn: Turn) -> int | None:
    """Version of the weights that sampled the turn's last sampled token; None when nothing was sampled."""
    found = [span.policy_version for span in spans if span.turn == turn.index and span.origin is Origin.POLICY]
    return found[-1] if found else None


def _action(turn: Turn) -> str:
    action = turn.action
    return canonical(
        {
            "sampled": [_call(call) for call in action.sampled],
            "executed": [_call(call) for call in action.executed],
            "rewriter": action.rewriter,
            "parse_error": action.parse_error,
        }
    ).decode()


def _call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id}
