"""What ends an attempt besides the agent: limits of its owner, a full context, a script that is over, its owner."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from kifu.envs import Task
from kifu.gateway import Endpoint, Function, Gateway, Opened, Ran, Terms, attempt
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import (
    EnvironmentRef,
    Origin,
    Purpose,
    RolloutKey,
    RunStore,
    StopReason,
    TaskRef,
    ToolCall,
    Trajectory,
    Verdict,
)

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}}]

Serve: TypeAlias = Callable[..., Gateway]
Turns: TypeAlias = Callable[..., ScriptedSampler]
Masked: TypeAlias = Callable[[Trajectory, int], list[tuple[Origin, str]]]


class Sheet:
    """A case that is right when the agent says `5`, in a world of its own."""

    def __init__(self) -> None:
        self.task = Task(id="t", seed=11, data={"prompt": "how much?", "answer": "5"})
        self.heard: list[str] = []
        self.ended = 0

    async def begin(self) -> Task:
        return Task(id="t", data={"prompt": "how much?"})

    async def judge(self, ran: Ran) -> Verdict:
        self.heard.append(ran.text)
        return Verdict(success=ran.text == "5")

    async def end(self) -> EnvironmentRef:
        self.ended += 1
        return EnvironmentRef(id="sheet", version="2", seed=11, initial_digest="a" * 64)


def talk(task: Task, endpoint: Endpoint, *, calls: int = 9, say: str = "go on") -> str:
    """An agent that calls a tool whenever it is told to, and stops at the first turn without a call."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.data["prompt"]}]
    for _ in range(calls):
        body = json.dumps({"model": endpoint.model, "messages": messages, "tools": TOOLS}).encode()
        asked = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body)
        asked.add_header("x-api-key", endpoint.key)
        with urllib.request.urlopen(asked) as answer:
            message = json.load(answer)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        messages += [{"role": "tool", "tool_call_id": item["id"], "content": say} for item in message["tool_calls"]]
    return ""


async def once(
    gateway: Gateway, agent: Function, *, key: RolloutKey = KEY, **terms: object
) -> tuple[Trajectory, Sheet]:
    sheet = Sheet()
    given = Terms(**{"sampling": None, "timeout_s": 60.0, **terms})  # type: ignore[arg-type]
    async with serving(gateway) as url:
        return await attempt(gateway, sheet, agent=agent, url=url, key=key, terms=given), sheet


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def test_the_world_asks_and_judges_and_is_named_in_the_record(serve: Serve, turns: Turns) -> None:
    record, sheet = await once(serve(turns(CALL, "5")), Function(talk))
    assert (record.reward, record.outcome.reason, sheet.heard) == (1.0, StopReason.NATURAL_END, ["5"])
    assert (record.environment.id, record.environment.initial_digest) == ("sheet", "a" * 64)
    assert (sheet.ended, [result.text for result in record.turns[0].results]) == (1, ["go on"])


async def test_a_limit_of_the_task_refuses_the_next_call_and_is_how_it_ended(serve: Serve, turns: Turns) -> None:
    def reached(*, turns: int, tokens: int, after_result: bool) -> tuple[StopReason, str] | None:
        return (StopReason.TASK_BUDGET, "the task allows 2 turns") if turns >= 2 and after_result else None

    record, sheet = await once(serve(turns(CALL)), Function(talk), reached=reached)
    assert (len(record.turns), record.outcome.reason) == (2, StopReason.TASK_BUDGET)
    assert (record.reward, sheet.heard) == (0.0, [""]), "a failure of the task is judged, not an agent's error"


async def test_a_context_that_is_full_is_a_cut_and_not_the_agents_error(serve: Serve, turns: Turns) -> None:
    record, _ = await once(
        serve(turns(CALL), max_context=512), Function(lambda task, endpoint: talk(task, endpoint, say="x" * 600))
    )
    assert (record.outcome.reason, record.outcome.truncated) == (StopReason.CONTEXT_LIMIT, True)
    assert len(record.turns) >= 1


async def test_an_answer_that_was_cut_is_a_cut(serve: Serve, turns: Turns) -> None:
    record, _ = await once(serve(turns("5 and more and more", end=False), max_new_tokens=4), Function(talk))
    assert (record.outcome.reason, record.outcome.detail) == (
        StopReason.TOKEN_LIMIT,
        "the last turn was cut after 4 tokens",
    )


async def test_a_demonstrator_writes_where_the_policy_would_in_the_agents_own_conversation(
    serve: Serve, turns: Turns, masked: Masked
) -> None:
    key = RolloutKey(seed=3, step=0, group=0, member=0, purpose=Purpose.DEMONSTRATION)
    calls = [ToolCall(name="add", arguments={"a": 2}), ToolCall(name="add", arguments={"a": 3})]
    record, _ = await once(serve(turns("never sampled")), Function(talk), key=key, calls=calls)
    shown = [text for origin, text in masked(record, 0) if origin is Origin.DEMONSTRATION]
    assert shown == [
        '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call><|im_end|>',
    ]
    assert {origin for origin, _ in masked(record, 0)} == {
        Origin.PROMPT,
        Origin.TEMPLATE,
        Origin.DEMONSTRATION,
        Origin.ENVIRONMENT,
    }
    assert (record.outcome.reason, record.outcome.detail) == (StopReason.NATURAL_END, "the script is over")
    assert record.sampled_tokens == 0


async def test_a_demonstration_that_the_agents_tools_cannot_say_is_an_error(serve: Serve, turns: Turns) -> None:
    key = RolloutKey(seed=3, step=0, group=0, member=0, purpose=Purpose.DEMONSTRATION)
    record, _ = await once(serve(turns("x")), Function(talk), key=key, calls=[ToolCall(name="subtract", arguments={})])
    assert (record.outcome.infra_error, record.reward) == (True, None)
    assert "subtract" in record.turns[0].events[-1].detail["error"]  # type: ignore[operator]


@pytest.mark.parametrize("keeps", [True, False])
async def test_an_owner_who_stops_an_attempt_decides_whether_it_leaves_a_record(
    serve: Serve, turns: Turns, store: RunStore, keeps: bool
) -> None:
    begun = asyncio.Event()

    async def waits(task: Task, endpoint: Endpoint) -> str:
        await asyncio.to_thread(talk, task, endpoint)
        begun.set()
        await asyncio.sleep(99)
        return ""

    gateway, sheet = serve(turns("hello")), Sheet()
    terms = Terms(sampling=None, timeout_s=None, keeps_cancelled=keeps)
    async with serving(gateway) as url:
        going = asyncio.create_task(attempt(gateway, sheet, agent=Function(waits), url=url, key=KEY, terms=terms))
        await asyncio.wait_for(begun.wait(), 30)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
    assert [item.outcome.reason for item in store.pending] == [StopReason.CANCELLED] * keeps
    assert (sheet.ended, gateway.rollouts) == (1, ())
    if not keeps:
        assert store.notes(KEY.id) == ()
        again: Opened = await gateway.open(KEY, TaskRef(id="t"))
        assert again.id == KEY.id, "its place is free"
