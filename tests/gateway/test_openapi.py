"""The gateway describes itself, and a fuzzer that reads the description finds no 5xx, no hang and no other form."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
from starlette.routing import Route

from kifu.gateway import Gateway, Opened
from kifu.gateway.app import build_app
from kifu.gateway.openapi import openapi_document
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, rebuild_check
from sdk_envs import run_client

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CLIENT = Path(__file__).parent / "clients" / "schemathesis.txt"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


def test_every_route_is_described_and_nothing_else(serve: Serve, turns: Turns) -> None:
    app = build_app(serve(turns("hi")))
    routes = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(path, method) for path, item in openapi_document(["kifu"])["paths"].items() for method in item}

    assert described == routes - {("/openapi.json", "get")}


def test_the_description_holds_the_fields_that_are_read() -> None:
    schemas = openapi_document(["one", "two"])["components"]["schemas"]
    chat = schemas["ChatBody"]

    assert chat["required"] == ["model", "messages"]
    assert chat["properties"]["model"] == {"enum": ["one", "two"]}
    assert chat["properties"]["messages"]["items"]["properties"]["role"]["enum"] == [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
    ]
    assert schemas["MessagesBody"]["properties"]["max_tokens"]["anyOf"][0] == {"minimum": 1, "type": "integer"}


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("paths", "role"),
    [("^/(v1|healthz)", "model"), ("^/r/.*/v1", "model"), ("^/r/.*/verdict", "verdict"), ("^/admin", "admin")],
)
async def test_a_fuzzer_that_reads_the_description_finds_nothing(
    serve: Serve, turns: Turns, live: Live, paths: str, role: str, examples: int
) -> None:
    """No 5xx, only described statuses, media types and forms; keys are asked for, wrong bodies and methods refused."""
    gateway = serve(turns("hi", CALL, "yes"))
    async with live(gateway) as (opened, client):
        key = {"model": opened.model_key, "verdict": opened.verdict_key, "admin": "sk-admin"}[role]
        url = str(client.base_url).rstrip("/")
        out = await run_client("schemathesis", CLIENT, [paths, str(examples), "7"], url=url, key=key, timeout_s=1500.0)
        healthy = (await client.get("/healthz")).json()
    record = await gateway.seal(KEY.id)
    made = re.search(r"(\d+) generated", out)
    print(paths, made and made[0])

    assert made is not None, out[-3000:]
    assert int(made[1]) > 100
    assert healthy == {"status": "ok"}
    assert rebuild_check(record) == []
    assert json.dumps(gateway.metrics(), allow_nan=False)
