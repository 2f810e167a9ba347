"""Sub-agents over HTTP: headers that name an agent and the turn that called it become links in the record."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest

from kifu.gateway import AgentLink, Gateway, Opened, agent_links
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, Verdict, pre_update_check, to_atif, to_messages
from kifu.render import ChatRenderer

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CALL = '<tool_call>\n{"name": "research", "arguments": {"q": "x"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "research", "parameters": {"type": "object", "properties": {"q": {}}}}}

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


def chat(*messages: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"model": "kifu", "messages": list(messages), **fields}


async def test_a_tree_of_agents_is_in_the_record_and_its_exports_as_links_to_the_turns_that_called(
    serve: Serve, turns: Turns, live: Live, renderer: ChatRenderer
) -> None:
    gateway = serve(turns(CALL, "found", "checked", "done"))
    async with live(gateway) as (_, client):

        async def ask(body: dict[str, Any], **headers: str) -> httpx2.Response:
            named = {f"x-kifu-{name}": value for name, value in headers.items()}
            answer = await client.post("/v1/chat/completions", json=body, headers=named)
            assert answer.status_code == 200, answer.text
            return answer

        user = {"role": "user", "content": "go"}
        first = (await ask(chat(user, tools=[TOOL]), agent="planner")).json()
        call = first["choices"][0]["message"]["tool_calls"][0]
        sub = await ask(chat({"role": "user", "content": "x?"}), agent="researcher", parent=call["id"])
        await ask(chat({"role": "user", "content": "true?"}), agent="checker", parent=sub.headers["x-kifu-turn"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": "found"}
        await ask(chat(user, first["choices"][0]["message"], result, tools=[TOOL]), agent="planner")
        body = {"model": "kifu", "input": "more"}
        last = await client.post("/v1/responses", json=body, headers={"x-kifu-parent": first["id"]})
        assert last.status_code == 200
    await gateway.judge(KEY.id, Verdict(success=True))
    record = await gateway.seal(KEY.id)

    assert agent_links(record) == (
        AgentLink(turn=0, agent="planner"),
        AgentLink(turn=1, agent="researcher", parent=0),
        AgentLink(turn=2, agent="checker", parent=1),
        AgentLink(turn=3, agent="planner"),
        AgentLink(turn=4, parent=0),
    )
    assert [turn.tape for turn in record.turns] == [0, 1, 2, 0, 3]
    assert pre_update_check(record) == []
    decode = renderer.tokenizer.decode
    told = [(item["role"], item["content"]) for item in to_messages(record, decode=decode) if item["role"] != "system"]
    assert told == [
        *(("user", "go"), ("assistant", CALL), ("tool", "found")),
        *(("user", "x?"), ("assistant", "found")),
        *(("user", "true?"), ("assistant", "checked")),
        ("assistant", "done"),
        *(("user", "more"), ("assistant", "done")),
    ]
    steps = [step for step in to_atif(record, decode=decode)["steps"] if step["source"] == "agent"]
    assert steps[1]["extra"]["events"][-1] == {"kind": "capture.agent", "agent": "researcher", "parent": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-kifu-parent", "0"),
        ("x-kifu-parent", "-1"),
        ("x-kifu-parent", "chatcmpl-" + "0" * 24),
        ("x-kifu-parent", "call_nothing_0"),
        ("x-kifu-agent", ""),
        ("x-kifu-agent", "a" * 129),
    ],
)
async def test_a_header_that_names_nothing_is_refused_by_its_name(
    serve: Serve, turns: Turns, live: Live, name: str, value: str
) -> None:
    gateway = serve(turns("hello"))
    async with live(gateway) as (_, client):
        body = chat({"role": "user", "content": "hi"})
        refused = await client.post("/v1/chat/completions", json=body, headers={name: value})
        served = await client.post("/v1/chat/completions", json=body, headers={"x-kifu-agent": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert served.status_code == 200
    assert len((await gateway.seal(KEY.id)).turns) == 1
