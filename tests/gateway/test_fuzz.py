"""Whatever a client sends, the gateway answers: below 500, in time, and its record can be rebuilt."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kifu.gateway import Gateway, Limits, Opened
from kifu.gateway.streaming import PIECE, EventStream
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, rebuild_check

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
NAMES = (
    *(
        "model",
        "messages",
        "prompt",
        "input",
        "tools",
        "tool_choice",
        "n",
        "max_tokens",
        "temperature",
        "top_p",
        "stop",
    ),
    *("seed", "logprobs", "top_logprobs", "response_format", "stream", "stream_options", "system", "instructions"),
    *("metadata", "logit_bias", "echo", "thinking", "top_k", "return_token_ids", "text", "parallel_tool_calls"),
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
WORDS = st.sampled_from(
    (
        *(
            "role",
            "content",
            "type",
            "text",
            "function",
            "name",
            "arguments",
            "parameters",
            "properties",
            "schema",
            "id",
        ),
        *("tool_calls", "tool_call_id", "input_schema", "required", "tool_use", "tool_result", "user", "$ref"),
    )
)
JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES}, optional={"content": JSON}) | JSON, max_size=4)
SOUND = {"model": "kifu", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
MORE = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=2)
BODIES = st.one_of(
    st.just({**SOUND, "input": "hi", "prompt": "hi"}),
    MORE.map(lambda more: {**SOUND, "input": "hi", "prompt": "hi", **more}),
    MESSAGES.map(lambda messages: {**SOUND, "messages": messages, "input": messages}),
    MORE.map(lambda more: {"model": "kifu", **more}),
    JSON,
)


async def test_no_body_makes_the_gateway_fail_or_hang(serve: Serve, turns: Turns, live: Live) -> None:
    gateway = serve(turns("hello"), limits=Limits(call_s=5.0, calls_per_rollout=1000))
    bodies: list[tuple[str, Any]] = []

    @settings(max_examples=120, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(path=st.sampled_from(PATHS), body=BODIES)
    def draw(path: str, body: Any) -> None:  # noqa: ANN401 - JSON
        bodies.append((path, body))

    draw()
    statuses = set()
    async with live(gateway) as (_, client):
        for path, body in bodies:
            async with asyncio.timeout(20.0):
                response = await client.post(path, content=json.dumps(body).encode())
            assert response.status_code < 500, (path, body, response.text)
            statuses.add(response.status_code)
            if response.status_code >= 400:
                assert response.json()["error"]["message"]
    record = await gateway.seal(KEY.id)
    assert {200, 400} <= statuses
    assert rebuild_check(record) == []
    assert record.sampled_tokens == gateway.delivered.trainable


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    opening=st.binary(max_size=40),
    closing=st.binary(max_size=40) | st.just(b"x" * (2 * PIECE + 1)),
    delay_s=st.sampled_from([0.0, 0.03]),
    leaves=st.booleans(),
)
def test_a_stream_is_its_opening_and_its_end_whatever_the_order_of_things(
    opening: bytes, closing: bytes, delay_s: float, leaves: bool
) -> None:
    sent: list[dict[str, Any]] = []
    ended: list[bool] = []

    async def end() -> bytes:
        await asyncio.sleep(delay_s)
        return closing

    async def receive() -> dict[str, Any]:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:  # noqa: ANN401 - ASGI
        sent.append(dict(message))

    stream = EventStream(opening=opening, closing=end, ended=ended.append, headers={}, ping_s=9.0, send_s=9.0)
    asyncio.run(stream({}, receive, send))
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    assert sent[0]["status"] == 200
    if leaves and delay_s:
        assert ended == [False]
        assert bodies == []
    elif not leaves:
        assert ended == [True]
        assert b"".join(message["body"] for message in bodies) == opening + closing
        assert [message["more_body"] for message in bodies][-1] is False
        assert max(len(message["body"]) for message in bodies) <= max(PIECE, len(opening))


async def test_a_client_that_takes_nothing_is_given_up_and_a_waiting_one_is_told_so() -> None:
    ended: list[bool] = []
    sent: list[bytes] = []

    async def end() -> bytes:
        await asyncio.sleep(0.2)
        return b"data: end\n\n"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def never(message: Any) -> None:  # noqa: ANN401 - ASGI
        await asyncio.Event().wait()

    async def keep(message: Any) -> None:  # noqa: ANN401 - ASGI
        sent.append(message.get("body", b""))

    def stream(send_s: float) -> EventStream:
        return EventStream(opening=b"o", closing=end, ended=ended.append, headers={}, ping_s=0.05, send_s=send_s)

    async with asyncio.timeout(5.0):
        await stream(0.05)({}, receive, never)
    assert ended == [False]
    await stream(5.0)({}, receive, keep)
    assert ended == [False, True]
    assert sent[1] == b"o"
    assert sent[-1] == b"data: end\n\n"
    assert set(sent[2:-1]) == {b": ping\n\n"}
