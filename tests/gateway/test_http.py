"""The gateway over a real socket: dialects, streams, capabilities, limits, hostile bodies."""

import asyncio
import gc
import json
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest

from kifu.gateway import Gateway, Limits, Opened
from kifu.policy import Generation, Request, ScriptedSampler
from kifu.records import Origin, RolloutKey, TaskRef, rebuild_check

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
OTHER = RolloutKey(seed=3, step=0, group=0, member=1)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
ADMIN = {"authorization": "Bearer sk-admin"}

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


def chat(content: object = "hi", **fields: object) -> dict[str, Any]:
    return {"model": "kifu", "messages": [{"role": "user", "content": content}], **fields}


def events(text: str) -> list[tuple[str | None, Any]]:
    """Server-sent events as (name, data), comments left out."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


async def test_a_chat_of_two_turns_with_a_tool(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(CALL, "two"))
    async with live(gateway) as (opened, client):
        first = (await client.post("/v1/chat/completions", json=chat(tools=[TOOL]))).json()
        message = first["choices"][0]["message"]
        assert (message["content"], first["choices"][0]["finish_reason"]) == (None, "tool_calls")
        call = message["tool_calls"][0]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
        history = [
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
            message,
            {"role": "tool", "tool_call_id": call["id"], "content": "2"},
        ]
        body = {"model": "kifu", "messages": history, "tools": [TOOL]}
        second = (await client.post(f"{opened.path}/v1/chat/completions", json=body)).json()
        assert second["choices"][0]["message"]["content"] == "two"
        assert second["usage"]["completion_tokens"] == len("two") + 1
    record = await gateway.seal(KEY.id)
    assert len(record.tapes) == 1
    assert rebuild_check(record) == []


async def test_no_answer_waits_for_the_clients_acknowledgement_of_the_one_before(
    serve: Serve, turns: Turns, live: Live
) -> None:
    gateway = serve(turns("one"))
    async with live(gateway) as (_, client):
        await client.post("/v1/chat/completions", json=chat(stream=True))
        port = client.base_url.port
        ends = [item.get_extra_info("socket") for item in gc.get_objects() if issubclass(type(item), asyncio.Transport)]
        served = [end for end in ends if end is not None and end.fileno() >= 0 and end.getsockname()[1] == port]
        assert served
        assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for end in served)


async def test_calls_that_were_answered_are_under_way_no_more(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("one"))
    async with live(gateway) as (_, client):
        for at in range(3):
            await client.post("/v1/chat/completions", json=chat(f"call {at}"))
        assert gateway.under_way == gateway.rollout(KEY.id).under_way == 0
        assert not gateway.desk.running


async def test_a_streamed_chat_says_what_the_whole_one_says(serve: Serve, turns: Turns, live: Live) -> None:
    text = "a long answer, " * 9
    gateway = serve(turns(f"{text}\n{CALL}"))
    async with live(gateway) as (_, client):
        body = chat(tools=[TOOL], stream=True, stream_options={"include_usage": True}, n=2)
        found = events((await client.post("/v1/chat/completions", json=body)).text)
    assert found[-1] == (None, "[DONE]")
    assert found[-2][1]["usage"]["completion_tokens"] > 0
    for index in (0, 1):
        choices = [data["choices"][0] for _, data in found[:-2] if data["choices"][0]["index"] == index]
        deltas = [choice["delta"] for choice in choices]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta.get("content") or "" for delta in deltas) == text
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert (calls[0]["index"], calls[0]["function"]["name"]) == (0, "add")
        assert json.loads("".join(call["function"].get("arguments", "") for call in calls)) == {"a": 1}
        assert [choice["finish_reason"] for choice in choices][-1] == "tool_calls"


async def test_the_end_of_a_stream_waits_for_the_record(
    serve: Serve, turns: Turns, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = serve(turns("hello"))
    logged = gateway._store.note
    seen: list[str] = []

    def note(name: str, body: Any) -> Any:  # noqa: ANN401 - JSON
        durable = logged(name, body)
        durable.add_done_callback(lambda _: seen.append("durable"))
        return durable

    monkeypatch.setattr(gateway._store, "note", note)
    async with live(gateway) as (_, client):
        seen.clear()
        async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            async for line in response.aiter_lines():
                if "hello" in line or "[DONE]" in line:
                    seen.append(line[:6])
    assert seen == ["durable", "data: ", "data: "]


async def test_anthropics_dialect_with_a_tool_whole_and_streamed(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(f"ok\n{CALL}", "two"))
    tool = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
    asked = {"model": "kifu", "max_tokens": 200, "tools": [tool], "system": [{"type": "text", "text": "Act."}]}
    async with live(gateway) as (opened, client):
        del client.headers["authorization"]
        client.headers["x-api-key"] = opened.model_key
        user = {"role": "user", "content": "go"}
        first = (await client.post("/v1/messages", json={**asked, "messages": [user]})).json()
        assert [block["type"] for block in first["content"]] == ["text", "tool_use"]
        assert (first["content"][1]["input"], first["stop_reason"]) == ({"a": 1}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "2"}
        history = [user, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        count = await client.post("/v1/messages/count_tokens", json={**asked, "messages": history})
        second = await client.post("/v1/messages", json={**asked, "messages": history, "stream": True})
    found = events(second.text)
    assert [name for name, _ in found] == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert all(name == data["type"] for name, data in found)
    assert found[0][1]["message"]["usage"]["input_tokens"] == count.json()["input_tokens"]
    assert found[3][1]["delta"] == {"type": "text_delta", "text": "two"}
    record = await gateway.seal(KEY.id)
    assert (len(record.tapes), len(record.turns)) == (1, 2)
    assert record.turns[0].action.executed == record.turns[0].action.sampled


async def test_the_responses_dialect_with_a_tool_whole_and_streamed(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(f"ok\n{CALL}", "two"))
    tool = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
    asked = {"model": "kifu", "tools": [tool], "instructions": "Act.", "include": [], "store": False}
    async with live(gateway) as (_, client):
        first = await client.post("/v1/responses", json={**asked, "input": "go"})
        output = first.json()["output"]
        assert [item["type"] for item in output] == ["message", "function_call"]
        assert first.headers["x-kifu-inert"] == "include,store,tools.strict"
        answer = {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "2"}
        items = [{"role": "user", "content": "go"}, *output, answer]
        found = events((await client.post("/v1/responses", json={**asked, "input": items, "stream": True})).text)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert found[0][0] == "response.created"
    assert found[-1][0] == "response.completed"
    assert found[-1][1]["response"]["output"][0]["content"][0]["text"] == "two"
    assert len((await gateway.seal(KEY.id)).tapes) == 1


async def test_bare_completions_go_on_from_text_and_from_ids(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("ab", "cd", "ef"))
    async with live(gateway) as (_, client):
        asked = {"model": "kifu", "return_token_ids": True, "logprobs": 1}
        first = (await client.post("/v1/completions", json={**asked, "prompt": "Q:"})).json()["choices"][0]
        text = {**asked, "prompt": "Q:ab!"}
        second = (await client.post("/v1/completions", json=text)).json()["choices"][0]
        ids = [*second["prompt_token_ids"], *second["token_ids"], 65]
        third = (await client.post("/v1/completions", json={**asked, "prompt": ids})).json()["choices"][0]
    assert first["logprobs"]["token_logprobs"] == [-1.0] * len(first["token_ids"])
    assert second["prompt_token_ids"][: len(first["prompt_token_ids"]) + 2] == [
        *first["prompt_token_ids"],
        *first["token_ids"][:-1],
    ]
    assert third["prompt_token_ids"] == ids
    record = await gateway.seal(KEY.id)
    assert [tape.parent for tape in record.tapes] == [None, 0]
    assert record.tapes[1].fork_at == record.turns[0].stop - 1
    assert next(span.origin for span in record.tapes[1].spans) is Origin.CONTROLLER


async def test_keys_are_capabilities(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("hello"))
    async with live(gateway) as (opened, client):
        other = await gateway.open(OTHER, TaskRef(id="t"))

        async def status(path: str, *, json: Any = None, **headers: str) -> int:  # noqa: ANN401 - JSON
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with httpx2.AsyncClient(base_url=client.base_url, headers=named) as fresh:
                return (await fresh.post(path, json=chat() if json is None else json)).status_code

        path, agent = "/v1/chat/completions", f"Bearer {opened.model_key}"
        assert await status(path) == 401
        assert await status(path, authorization="Bearer sk-wrong") == 401
        assert await status(path, authorization="Basic abc") == 401
        assert await status(path, authorization=agent, x_api_key=other.model_key) == 400
        assert await status(other.path + path, authorization=agent) == 400
        assert await status(opened.path + path, authorization=agent, x_api_key=opened.model_key) == 200
        verdict = {"success": True}
        assert await status(f"{opened.path}/verdict", json=verdict, authorization=agent) == 403
        assert await status("/admin/rollouts", json={"task": "x"}, authorization=agent) == 403
        assert await status(f"/admin/rollouts/{KEY.id}/seal", json={}, authorization=agent) == 403
        assert await status(path, authorization=f"Bearer {opened.verdict_key}") == 403
        assert await status(f"{other.path}/verdict", json=verdict, authorization=f"Bearer {opened.verdict_key}") == 400
        assert await status(f"{opened.path}/verdict", json=verdict, authorization=f"Bearer {opened.verdict_key}") == 200
        lie = {"success": False}
        assert await status(f"{opened.path}/verdict", json=lie, authorization=f"Bearer {opened.verdict_key}") == 409
        assert await status(f"/admin/rollouts/{KEY.id}/seal", json={}, **ADMIN) == 200
        assert await status(path, authorization=agent) == 410
        assert gateway.metrics()["late"] == 1
        assert await status(path, authorization=f"Bearer {other.model_key}") == 200


async def test_administration_opens_lists_and_seals(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("hello"))
    async with live(gateway) as (_, client):
        client.headers.update(ADMIN)
        made = await client.post("/admin/rollouts", json={"task": "x", "member": 5, "seed": 3})
        assert made.status_code == 201
        again = await client.post("/admin/rollouts", json={"task": "x", "member": 5, "seed": 3})
        assert again.status_code == 409
        opened = made.json()
        assert opened["id"] in (await client.get("/admin/rollouts")).json()["rollouts"]
        agent = {"authorization": f"Bearer {opened['model_key']}"}
        listed = await client.get("/v1/models", headers=agent)
        assert [model["id"] for model in listed.json()["data"]] == ["kifu"]
        assert (await client.post("/v1/chat/completions", json=chat(), headers=agent)).status_code == 200
        sealed = (await client.post(f"/admin/rollouts/{opened['id']}/seal", json={})).json()
        assert (sealed["turns"], sealed["sampled_tokens"], sealed["reward"]) == (1, len("hello") + 1, None)
        assert (await client.get("/admin/metrics")).json()["delivered_fraction"] == 1.0


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {**chat(), "audio": {}}, "audio"),
        ("/v1/chat/completions", {**chat(), "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {**chat(), "frequency_penalty": 0.5}, "frequency_penalty"),
        ("/v1/chat/completions", {**chat(), "logit_bias": {"5": 1}}, "logit_bias"),
        ("/v1/chat/completions", {**chat(), "max_tokens": -1}, "max_tokens"),
        ("/v1/chat/completions", {**chat(), "temperature": "hot"}, "temperature"),
        ("/v1/chat/completions", {**chat(), "n": 99}, "n"),
        ("/v1/chat/completions", {**chat(), "stop": ["x"] * 9}, "stop"),
        ("/v1/chat/completions", {**chat(), "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {**chat(), "tools": [TOOL, TOOL]}, "tools"),
        ("/v1/chat/completions", {**chat(), "messages": []}, "messages"),
        ("/v1/chat/completions", chat([{"type": "image_url"}]), "messages.0.content.0.type"),
        ("/v1/chat/completions", {**chat(), "messages": [{"role": "king", "content": ""}]}, "messages.0.role"),
        ("/v1/chat/completions", {**chat(), "messages": ["hi"]}, "messages.0"),
        ("/v1/completions", {"model": "kifu", "prompt": [-1]}, "prompt"),
        ("/v1/completions", {"model": "kifu", "prompt": [10**6]}, "prompt"),
        ("/v1/completions", {"model": "kifu", "prompt": "x", "echo": True}, "echo"),
        ("/v1/completions", {"model": "kifu", "prompt": "x", "stop_token_ids": [77]}, "stop_token_ids"),
        ("/v1/responses", {"model": "kifu", "input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"model": "kifu", "input": [{"type": "computer_call"}]}, "input.0.type"),
        ("/v1/chat/completions", chat("word " * 9000), "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_a_400_that_names_the_field(
    serve: Serve, turns: Turns, live: Live, path: str, body: dict[str, Any], field: str
) -> None:
    gateway = serve(turns("hello"))
    async with live(gateway) as (_, client):
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert (await gateway.seal(KEY.id)).sampled_tokens == 0


async def test_errors_stand_in_the_dialects_own_form(serve: Serve, turns: Turns, live: Live) -> None:
    async with live(serve(turns("hello"))) as (_, client):
        message = {"model": "kifu", "messages": [{"role": "user", "content": "x"}]}
        missing = await client.post("/v1/messages", json=message)
        unknown = await client.post("/v1/messages", json={**message, "model": "claude", "max_tokens": 5})
        nowhere = await client.post("/v1/embeddings", json={})
        wrong = await client.get("/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "max_tokens" in missing.json()["error"]["message"]
    assert (unknown.status_code, unknown.json()["type"]) == (404, "error")
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert (nowhere.status_code, wrong.status_code) == (404, 405)


async def test_unknown_and_inert_names_are_recorded_and_returned(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("hello"))
    async with live(gateway) as (_, client):
        body = chat(user="u", metadata={"k": "v"}, temperature=0.2, **{"weird\r\nname": 1})
        response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["x-kifu-inert"] == "user,metadata"
    assert response.headers["x-kifu-unknown"] == "weird%0D%0Aname"
    assert response.headers["x-kifu-overridden"] == "temperature"
    detail = (await gateway.seal(KEY.id)).turns[0].events[0].detail
    assert (detail["inert"], detail["unknown"], detail["overridden"]) == (
        ["user", "metadata"],
        ["weird\r\nname"],
        ["temperature"],
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": "kifu", "messages": NaN}', 400),
        (b'{"model": "kifu", "model": "kifu"}', 400),
        (b'{"model": "\xff"}', 400),
        (b'{"model": "\\ud800", "messages": []}', 400),
        (b'{"model": 1e999}', 400),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, 400),
        (b"[" * 200_000, 400),
        (b'{"x": "' + b"a" * 70_000 + b'"}', 413),
    ],
)
async def test_a_body_that_is_not_a_call_is_refused(
    serve: Serve, turns: Turns, live: Live, body: bytes, status: int
) -> None:
    gateway = serve(turns("hello"), limits=Limits(body_bytes=300_000 if status == 400 else 60_000))
    async with live(gateway) as (_, client):
        response = await client.post("/v1/chat/completions", content=body)
        good = await client.post("/v1/chat/completions", json=chat())
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert good.status_code == 200


async def test_a_client_that_goes_away_leaves_a_recorded_call_and_its_retry_gets_it(
    serve: Serve, live: Live, turns: Turns
) -> None:
    started = asyncio.Event()

    class Slow(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            started.set()
            await asyncio.sleep(0.1)
            return await turns("hello").sample(request)

    gateway = serve(Slow(lambda request: []))
    async with live(gateway) as (_, client):
        body = json.dumps(chat(stream=True))
        async with client.stream("POST", "/v1/chat/completions", content=body):
            await started.wait()
        await asyncio.sleep(0.3)
        retry = {"x-stainless-retry-count": "1"}
        again = await client.post("/v1/chat/completions", content=body, headers=retry)
    assert "hello" in again.text
    assert again.headers["x-kifu-replayed"] == "true"
    record = await gateway.seal(KEY.id)
    assert [event.kind for event in record.turns[0].events][-1] == "capture.disconnected"
    assert record.sampled_tokens == len("hello") + 1


async def test_a_client_that_never_reads_or_sends_does_not_keep_others_waiting(
    serve: Serve, turns: Turns, live: Live
) -> None:
    gateway = serve(turns("hello " * 40), limits=Limits(read_s=0.3, send_s=0.3))
    async with live(gateway) as (opened, client):
        host, port = client.base_url.host, client.base_url.port
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {opened.model_key}\r\n"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write((head + "content-length: 50\r\n\r\n{").encode())
        await writer.drain()
        good = await client.post("/v1/chat/completions", json=chat())
        assert good.status_code == 200
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_calls_beyond_the_limit_are_told_to_come_again(serve: Serve, live: Live, turns: Turns) -> None:
    gate, both = asyncio.Event(), asyncio.Barrier(3)

    class Waiting(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            await both.wait()
            await gate.wait()
            return await turns("hello").sample(request)

    gateway = serve(Waiting(lambda request: []), limits=Limits(calls_per_rollout=2, call_s=5))
    async with live(gateway) as (_, client):
        waiting = [asyncio.create_task(client.post("/v1/chat/completions", json=chat(str(at)))) for at in range(2)]
        await both.wait()
        refused = await client.post("/v1/chat/completions", json=chat("more"))
        gate.set()
        served = [(await task).status_code for task in waiting]
    assert (refused.status_code, refused.headers["retry-after"], served) == (429, "1", [200, 200])
