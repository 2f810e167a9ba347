"""Records for other tools: the Agent Trajectory Interchange Format (ATIF 1.7) and chat messages.

Both are views for reading elsewhere; neither can be turned back into a record. A record holds prompts as token ids
only, so their text appears when the caller passes ``decode``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from kifu.records.chain import canonical
from kifu.records.checks import placed_spans
from kifu.records.rows import content_digest
from kifu.records.tokens import Floats, Ints, Origin
from kifu.records.trajectory import Trajectory
from kifu.records.turns import ToolCall, ToolResult, Turn

ATIF_VERSION = "ATIF-v1.7"

Decode: TypeAlias = Callable[[Ints], str]
"""Token ids to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCard:
    """Who acted, for the reader of an export."""

    name: str = "kifu"
    version: str = "1"
    model_name: str | None = None
    tool_definitions: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    """OpenAI function schemas."""


def to_atif(trajectory: Trajectory, *, agent: AgentCard | None = None, decode: Decode | None = None) -> dict[str, Any]:
    """One record as an ATIF 1.7 document.

    One agent step per turn; its observation holds the turn's results. ``completion_token_ids`` runs from the turn's
    first sampled token to its last one, so that everything outside is context; forced tokens in between have
    probability 1 (logprob 0) and are unset in ``metrics.extra.policy_mask``. The reward, which ATIF has no field for,
    stands in ``extra``.
    """
    agent = agent or AgentCard()
    prompts = _prompts(trajectory, decode)
    turns = [_agent_step(trajectory, turn) for turn in trajectory.turns]
    steps = [step for turn, found in enumerate(turns) for step in (*map(_told_step, prompts.get(turn, ())), found)]
    steps = steps or [{"source": "system", "message": trajectory.outcome.detail}]
    verdict, outcome = trajectory.verdict, trajectory.outcome
    return {
        "schema_version": ATIF_VERSION,
        "session_id": trajectory.provenance.protocol or trajectory.id,
        "trajectory_id": trajectory.id,
        "agent": _present(
            name=agent.name,
            version=agent.version,
            model_name=agent.model_name,
            tool_definitions=[dict(tool) for tool in agent.tool_definitions] or None,
        ),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": sum(step.get("metrics", {}).get("prompt_tokens", 0) for step in turns),
            "total_completion_tokens": sum(step.get("metrics", {}).get("completion_tokens", 0) for step in turns),
            "total_steps": len(steps),
        },
        "extra": {
            "content_digest": content_digest(trajectory),
            "task_id": trajectory.task.id,
            "environment": f"{trajectory.environment.id}/{trajectory.environment.version}",
            "reset_seed": trajectory.environment.seed,
            "reward": trajectory.reward,
            "success": None if verdict is None else verdict.success,
            "verifier": None if verdict is None else verdict.verifier,
            "stop_reason": outcome.reason.value,
            "terminated": outcome.terminated,
            "truncated": outcome.truncated,
            "infra_error": outcome.infra_error,
        },
    }


def to_messages(trajectory: Trajectory, *, decode: Decode | None = None) -> list[dict[str, Any]]:
    """One record as OpenAI chat messages: prompts, assistant messages with their calls, tool results in call order.

    An observation that answers no call, e.g. to a message that could not be parsed, is a user message. Turns of other
    conversations of the same rollout, such as those of its sub-agents, follow in the order they were written in.
    """
    prompts = _prompts(trajectory, decode)
    found: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        found += [{"role": role, "content": text} for role, text in prompts.get(turn.index, ())]
        names = _call_ids(turn)
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": canonical(dict(call.arguments)).decode()},
            }
            for name, call in zip(names, turn.action.executed, strict=True)
        ]
        found.append({**message, "tool_calls": calls} if calls else message)
        for result in turn.results:
            if result.call is None:
                found.append({"role": "user", "content": result.text})
            else:
                found.append({"role": "tool", "tool_call_id": names[result.call], "content": result.text})
    return found


def _present(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _prompts(trajectory: Trajectory, decode: Decode | None) -> dict[int, list[tuple[str, str]]]:
    """What was told before each turn and by nobody among policy and environment, as (role, text); needs a decoder.

    The role is that of the system where the scaffolding before the text names it, else the user's.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    if decode is None:
        return found
    for tape in trajectory.tapes:
        before = ""
        for (origin, turn), group in groupby(tape.spans, key=lambda span: (span.origin, span.turn)):
            text = decode(np.concatenate([span.token_ids for span in group]))
            if origin is Origin.PROMPT:
                found.setdefault(turn, []).append(("system" if "system" in before else "user", text))
            before = text if origin is Origin.TEMPLATE else ""
    return found


def _told_step(told: tuple[str, str]) -> dict[str, Any]:
    return {"source": told[0], "message": told[1]}


def _agent_step(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    names = _call_ids(turn)
    metrics = _metrics(trajectory, turn)
    action = turn.action
    is_copied = trajectory.branch is not None and turn.index < trajectory.branch.turn
    results = [_result(result, names) for result in turn.results]
    return _present(
        source="agent",
        message=turn.text,
        tool_calls=[_call(call, name) for call, name in zip(action.executed, names, strict=True)] or None,
        observation={"results": results} if results else None,
        metrics=metrics,
        is_copied_context=True if is_copied else None,
        llm_call_count=0 if metrics is None else 1,
        extra=_present(
            turn=turn.index,
            tape=turn.tape,
            finish=turn.finish.value,
            reward_components=dict(turn.rewards) or None,
            parse_error=action.parse_error,
            rewriter=action.rewriter,
            sampled_calls=None if action.rewriter is None else [_call(call, call.id) for call in action.sampled],
            events=[{"kind": event.kind, **event.detail} for event in turn.events] or None,
        ),
    )


def _call_ids(turn: Turn) -> list[str]:
    """An id per executed call, unique in the conversation."""
    own = [call.id for call in turn.action.executed]
    return [name if name and own.count(name) == 1 else f"call_{turn.index}_{at}" for at, name in enumerate(own)]


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    return {"tool_call_id": name, "function_name": call.name, "arguments": dict(call.arguments)}


def _result(result: ToolResult, names: Sequence[str]) -> dict[str, Any]:
    extra = _present(
        trust=result.trust.value,
        exit_status=result.exit_status,
        error=result.error,
        digest_before=result.digest_before,
        cut_bytes=result.cut_bytes or None,
    )
    source = None if result.call is None else names[result.call]
    return _present(source_call_id=source, content=result.text, extra=extra)


def _metrics(trajectory: Trajectory, turn: Turn) -> dict[str, Any] | None:
    """Prompt and completion ids with logprobs; None for a turn nobody sampled."""
    sampled = [placed for placed in placed_spans(trajectory, origin=Origin.POLICY) if placed.span.turn == turn.index]
    if not sampled:
        return None
    ids = trajectory.tape_ids(sampled[0].tape)
    start, stop = sampled[0].start, sampled[-1].stop
    logprobs: Floats = np.zeros(stop - start, dtype=np.float32)
    mask = np.zeros(stop - start, dtype=np.bool_)
    for placed in sampled:
        assert placed.span.logprobs is not None
        logprobs[placed.start - start : placed.stop - start] = placed.span.logprobs
        mask[placed.start - start : placed.stop - start] = True
    extra = _present(
        policy_version=sampled[-1].span.policy_version,
        policy_mask=None if mask.all() else mask.tolist(),
    )
    return {
        "prompt_tokens": start,
        "completion_tokens": stop - start,
        "prompt_token_ids": ids[:start].tolist(),
        "completion_token_ids": ids[start:stop].tolist(),
        "logprobs": logprobs.tolist(),
        "extra": extra,
    }
