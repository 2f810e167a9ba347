"""Unmodified client libraries, each in its own environment, against the gateway on a socket; their records audited."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from client_audit import Witness, largest_error
from kifu.engines.hf import build
from kifu.gateway import Gateway, Opened, Serving
from kifu.gateway.grammar import Grammars
from kifu.models import ModelFolder
from kifu.policy import EngineSpec, Machine, ScriptedSampler
from kifu.records import (
    BlobStore,
    Origin,
    RolloutKey,
    RunStore,
    Verdict,
    audit_run,
    pre_update_check,
)
from kifu.render import ChatRenderer
from sdk_envs import run_client

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CLIENTS = Path(__file__).parent / "clients"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SCRIPT = (f"I add.\n{CALL}", "It is 2.")

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Masked = Callable[..., list[tuple[Origin, str]]]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(
    ("environment", "script"),
    [
        ("openai-2", "openai_chat"),
        ("openai-3", "openai_chat"),
        ("openai-3", "openai_responses"),
        ("anthropic", "anthropic_messages"),
    ],
)
async def test_a_client_library_solves_a_task_with_a_tool_on_one_tape(
    serve: Serve,
    turns: Turns,
    live: Live,
    masked: Masked,
    tmp_path: Path,
    store: RunStore,
    environment: str,
    script: str,
    mode: str,
) -> None:
    witness = Witness(turns(*SCRIPT))
    gateway = serve(witness)
    async with live(gateway) as (opened, client):
        url = f"{str(client.base_url).rstrip('/')}{opened.path}"
        out = await run_client(environment, CLIENTS / f"{script}.txt", [mode], url=url, key=opened.model_key)
    found = json.loads(out)
    await gateway.judge(KEY.id, Verdict(success=True))
    record = await gateway.seal(KEY.id)

    assert len(found["seen"]) == 2
    assert found.get("count", 0) <= found.get("usage", 0)
    own = masked(record, 0)
    assert len(record.tapes) == 1
    assert [text for origin, text in own if origin is Origin.POLICY] == [f"{text}<|im_end|>" for text in SCRIPT]
    assert [text for origin, text in own if origin is Origin.ENVIRONMENT] == ["<tool_response>\n2\n</tool_response>"]
    prompts = "".join(text for origin, text in own if origin is Origin.PROMPT)
    assert prompts.startswith("Be exact.")
    assert prompts.endswith("What is 1+1?")
    assert {origin for origin, _ in own} == {Origin.POLICY, Origin.ENVIRONMENT, Origin.PROMPT, Origin.TEMPLATE}
    assert record.sampled_tokens == sum(len(text) + 1 for text in SCRIPT)
    assert witness.problems(record) == []
    assert pre_update_check(record) == []
    store.seal(0)
    assert audit_run(store.folder).problems == ()


@pytest.mark.parametrize("environment", ["openai-2", "openai-3"])
async def test_a_client_library_over_a_real_model_is_captured_at_ratio_one(
    tiny_model: ModelFolder, renderer: ChatRenderer, store: RunStore, live: Live, environment: str
) -> None:
    engine = build(EngineSpec(model=str(tiny_model.path), machine=Machine(threads=1, max_slots=4), max_context=1024))
    gateway = Gateway(
        sampler=engine.sampler,
        renderer=renderer,
        store=store,
        blobs=BlobStore(store.folder / "blobs"),
        bitmaps=engine.bitmaps,
        constrain=Grammars(renderer),
        serving=Serving(max_context=1024, max_new_tokens=48, vocabulary=600),
    )
    async with live(gateway) as (opened, client):
        url = str(client.base_url).rstrip("/")
        script = CLIENTS / "openai_chat.txt"
        out = await run_client(
            environment, script, ["stream"], url=url, key=opened.model_key, more={"TOOL_CHOICE": "required"}
        )
    found = json.loads(out)
    record = await gateway.seal(KEY.id)
    error = await largest_error(engine.sampler, record)
    engine.close()

    assert found["seen"][0]["tool_calls"][0]["function"]["name"] == "add"
    assert gateway.delivered.fraction == 1.0
    assert error < 1e-4
    assert [turn.action.executed == turn.action.sampled for turn in record.turns] == [True] * len(record.turns)


def test_the_clients_do_not_know_kifu() -> None:
    assert [path.name for path in CLIENTS.glob("*.txt") if "import kifu" in path.read_text()] == []
    assert sys.version_info >= (3, 11)
