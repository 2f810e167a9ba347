"""Spans of outside agents: which turn each belongs to, what is kept of it, and what a hostile one can do."""

import gzip
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kifu.gateway import Gateway, Limits, Opened
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, RunStore, audit_run
from kifu.render import ChatRenderer
from sdk_envs import run_client

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CLIENTS = Path(__file__).parent / "clients"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
TRACE = "5b8efff798038103d269b633813fc60c"

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


def span(number: int, parent: int | None = None, *, trace: str = TRACE, **attributes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A span in OTLP's JSON that lasts a second, the later the higher its number."""
    return {
        "traceId": trace.upper(),
        "spanId": f"{number:016X}",
        **({} if parent is None else {"parentSpanId": f"{parent:016x}"}),
        "name": f"span {number}",
        "startTimeUnixNano": str((1_700_000_000 + number) * 10**9),
        "endTimeUnixNano": (1_700_000_001 + number) * 10**9,
        "attributes": [{"key": name.replace("__", "."), "value": value} for name, value in attributes.items()],
    }


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "agent"}, "spans": list(spans)}]}]}


def found_spans(record: Any) -> list[tuple[int, str, str]]:  # noqa: ANN401 - a record
    """Every span on record: its turn, its name, and how it was placed."""
    return [
        (turn.index, str(event.detail["name"]), str(event.detail["by"]))
        for turn in record.turns
        for event in turn.events
        if event.kind == "capture.span"
    ]


async def two_turns(client: httpx2.AsyncClient) -> tuple[str, str, str]:
    """A call of a tool and an answer; ids of both answers and of the tool call."""
    user = {"role": "user", "content": "go"}
    body = {"model": "kifu", "messages": [user], "tools": [TOOL]}
    first = (await client.post("/v1/chat/completions", json=body)).json()
    message = first["choices"][0]["message"]
    call = message["tool_calls"][0]["id"]
    history = [user, message, {"role": "tool", "tool_call_id": call, "content": "2"}]
    second = (await client.post("/v1/chat/completions", json={**body, "messages": history})).json()
    return first["id"], call, second["id"]


async def test_spans_stand_with_the_turns_they_name_or_enclose(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(CALL, "two"))
    async with live(gateway) as (opened, client):
        first, call, second = await two_turns(client)
        named = {"stringValue": first}
        inside = request(
            span(2, 1, gen_ai__response__id=named, gen_ai__usage__output_tokens={"intValue": "7"}),
            span(3, 1, gen_ai__tool__call__id={"stringValue": call}),
            span(4, 3, http__status={"intValue": 200}),
        )
        around = request(
            span(5, 1, gen_ai__response__id={"stringValue": second}),
            span(1, gen_ai__operation__name={"stringValue": "invoke_agent"}),
            span(6, 99),
            span(7, trace="f" * 32),
            span(8, trace="e" * 32, gen_ai__response__id={"stringValue": f"chatcmpl-{'0' * 24}"}),
        )
        for body in (inside, around):
            answer = await client.post(f"{opened.path}/v1/traces", json=body)
            assert (answer.status_code, answer.json()) == (200, {})
    record = await gateway.seal(KEY.id)

    assert found_spans(record) == [
        (0, "span 1", "below"),
        (0, "span 2", "name"),
        (0, "span 3", "name"),
        (0, "span 4", "above"),
        (0, "span 6", "trace"),
        (1, "span 5", "name"),
    ]
    assert (gateway.metrics()["spans"], gateway.metrics()["lost_spans"]) == (8, 2)
    detail = next(event.detail for event in record.turns[0].events if event.detail.get("name") == "span 2")
    assert (detail["trace"], detail["parent"], detail["seconds"]) == (TRACE, f"{1:016x}", 1.0)
    assert detail["attributes"] == {"gen_ai.response.id": first, "gen_ai.usage.output_tokens": 7}


async def test_texts_are_named_and_not_kept(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(CALL, "two"))
    async with live(gateway) as (_, client):
        first, _, _ = await two_turns(client)
        values: dict[str, Any] = {
            "gen_ai__response__id": {"stringValue": first},
            "gen_ai__input__messages": {"stringValue": "x" * 513},
            "bytes": {"bytesValue": "AAAA"},
            "map": {"kvlistValue": {"values": []}},
            "nan": {"doubleValue": "NaN"},
            "list": {"arrayValue": {"values": [{"stringValue": "a"}, {"boolValue": True}]}},
        }
        assert (await client.post("/v1/traces", json=request(span(1, **values)))).status_code == 200
    record = await gateway.seal(KEY.id)
    detail = record.turns[0].events[-1].detail
    assert detail["attributes"] == {"gen_ai.response.id": first, "list": ["a", True]}
    assert detail["omitted"] == ["gen_ai.input.messages", "bytes", "map", "nan"]


async def test_protocol_buffers_say_the_same_as_json_and_may_be_packed(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(CALL, "two"))
    async with live(gateway) as (_, client):
        first, _, _ = await two_turns(client)
        asked = ExportTraceServiceRequest()
        made = asked.resource_spans.add().scope_spans.add().spans.add(name="chat kifu", start_time_unix_nano=10**18)
        made.trace_id, made.span_id, made.end_time_unix_nano = bytes.fromhex(TRACE), bytes(7) + b"\x02", 10**18 + 10**9
        made.status.code = 2
        made.attributes.add(key="gen_ai.response.id").value.string_value = first
        made.attributes.add(key="gen_ai.request.temperature").value.double_value = 0.5
        data = gzip.compress(asked.SerializeToString())
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        answer = await client.post("/v1/traces", content=data, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
    assert not ExportTraceServiceResponse.FromString(answer.content).HasField("partial_success")
    detail = (await gateway.seal(KEY.id)).turns[0].events[-1].detail
    assert (detail["trace"], detail["id"]) == (TRACE, f"{2:016x}")
    assert (detail["failed"], detail["seconds"], detail["name"]) == (True, 1.0, "chat kifu")
    assert detail["attributes"] == {"gen_ai.response.id": first, "gen_ai.request.temperature": 0.5}


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {}, 400),
        (b'{"resourceSpans": 1}', {}, 400),
        (json.dumps(request({"traceId": "zz", "spanId": "1"})).encode(), {}, 400),
        (json.dumps(request({**span(1), "startTimeUnixNano": "-5"})).encode(), {}, 400),
        (json.dumps(request({**span(1), "endTimeUnixNano": "soon"})).encode(), {}, 400),
        (b"\xff\xff", {"content-type": "application/x-protobuf"}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-encoding": "br"}, 415),
        (b"not gzip", {"content-encoding": "gzip"}, 400),
        (gzip.compress(b" " * 400_000), {"content-encoding": "gzip"}, 413),
    ],
)
async def test_what_is_no_trace_is_refused_and_nothing_is_kept(
    serve: Serve, turns: Turns, live: Live, content: bytes, headers: dict[str, str], status: int
) -> None:
    gateway = serve(turns("hello"), limits=Limits(body_bytes=300_000))
    async with live(gateway) as (_, client):
        named = {"content-type": "application/json", **headers}
        refused = await client.post("/v1/traces", content=content, headers=named)
        wrong = await client.post("/v1/traces", json={}, headers={"authorization": "Bearer sk-wrong"})
    assert (refused.status_code, wrong.status_code) == (status, 401)
    assert refused.json()["message"]
    assert gateway.metrics()["spans"] == 0


async def test_a_flood_of_spans_is_cut_and_a_ring_of_them_ends(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns(CALL, "two"), limits=Limits(spans=3))
    async with live(gateway) as (_, client):
        await two_turns(client)
        ring = request(span(1, 2), span(2, 1), *(span(at) for at in range(3, 9)))
        answer = await client.post("/v1/traces", json=ring)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "5"
    record = await gateway.seal(KEY.id)
    assert found_spans(record) == []
    assert gateway.metrics()["lost_spans"] == 3


async def test_spans_outlive_the_process(serve: Serve, turns: Turns, live: Live, renderer: ChatRenderer) -> None:
    gateway = serve(turns(CALL, "two"))
    async with live(gateway) as (_, client):
        first, _, _ = await two_turns(client)
        await client.post("/v1/traces", json=request(span(1, gen_ai__response__id={"stringValue": first})))
    again = Gateway(sampler=turns("x"), renderer=renderer, store=gateway._store)
    assert again.recover() == (KEY.id,)
    assert found_spans(await again.seal(KEY.id)) == [(0, "span 1", "name")]


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_an_agent_instrumented_by_opentelemetry_is_traced_as_it_is(
    serve: Serve, turns: Turns, live: Live, store: RunStore, compression: str
) -> None:
    gateway = serve(turns(CALL, "It is 2."))
    async with live(gateway) as (opened, client):
        url = f"{str(client.base_url).rstrip('/')}{opened.path}"
        told = {
            "OTEL_SDK_DISABLED": "false",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{opened.model_key}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
        }
        out = await run_client("otel", CLIENTS / "traced.txt", [compression], url=url, key=opened.model_key, more=told)
    record = await gateway.seal(KEY.id)
    said = json.loads(out.splitlines()[-1])

    assert said["answer"] == "It is 2."
    assert sorted(found_spans(record)) == [
        (0, "chat kifu", "name"),
        (0, "execute_tool add", "name"),
        (0, "inner", "above"),
        (0, "invoke_agent exact", "below"),
        (1, "chat kifu", "name"),
    ]
    details: list[Any] = [
        event.detail for turn in record.turns for event in turn.events if event.kind == "capture.span"
    ]
    assert {detail["trace"] for detail in details} == {said["trace"]}
    tool = next(detail for detail in details if detail["name"] == "execute_tool add")
    assert tool["omitted"] == ["gen_ai.tool.call.result"]
    chats = [detail["attributes"] for detail in details if detail["name"] == "chat kifu"]
    assert [item["gen_ai.usage.output_tokens"] for item in chats] == [len(CALL) + 1, len("It is 2.") + 1]
    assert gateway.metrics()["lost_spans"] == 1
    store.seal(0)
    assert audit_run(store.folder).problems == ()
