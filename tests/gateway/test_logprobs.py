"""Logprobs, alternatives, seeds, stops and several choices, over a real model, in every dialect that has them."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kifu.engines.hf import build
from kifu.gateway import Gateway, Serving
from kifu.gateway.grammar import Grammars
from kifu.gateway.serve import serving
from kifu.models import ModelFolder
from kifu.policy import Engine, EngineSpec, Machine
from kifu.records import Origin, RolloutKey, RunStore, Sampling, TaskRef, Trajectory, placed_spans
from kifu.render import ChatRenderer

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CHAT = {"model": "kifu", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def engine(tiny_model: ModelFolder) -> Iterator[Engine]:
    made = build(EngineSpec(model=str(tiny_model.path), machine=Machine(threads=1, max_slots=4), max_context=256))
    yield made
    made.close()


@pytest.fixture(scope="module")
def judge(tiny_model: ModelFolder) -> Any:  # noqa: ANN401 - a model of transformers
    return AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32).eval()  # type: ignore[no-untyped-call]


@asynccontextmanager
async def client_of(
    engine: Engine, renderer: ChatRenderer, folder: Path, *, temperature: float = 1.0
) -> AsyncIterator[tuple[Gateway, httpx2.AsyncClient]]:
    """A gateway over the tiny model and a client with the key of its one rollout."""
    with RunStore(folder / "run") as store:
        how = Serving(max_context=256, vocabulary=600, alternatives=5, sampling=Sampling(temperature=temperature))
        gateway = Gateway(
            sampler=engine.sampler, renderer=renderer, store=store, serving=how, constrain=Grammars(renderer)
        )
        opened = await gateway.open(KEY, TaskRef(id="t"))
        headers = {"authorization": f"Bearer {opened.model_key}"}
        async with (
            serving(gateway) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=60.0) as client,
        ):
            yield gateway, client


def likeliest(judge: Any, record: Trajectory, *, temperature: float, count: int) -> list[list[tuple[int, float]]]:  # noqa: ANN401
    """For every sampled token the likeliest ids with their logprobs, by a forward of transformers."""
    found = []
    for placed in placed_spans(record, origin=Origin.POLICY):
        ids = torch.tensor(record.tape_ids(placed.tape).astype(np.int64))[None]
        with torch.inference_mode():
            logprobs_TV = torch.log_softmax(judge(ids).logits[0].double() / temperature, dim=-1)
        for at in range(placed.start, placed.stop):
            top = logprobs_TV[at - 1].topk(count)
            found.append(list(zip(top.indices.tolist(), top.values.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_alternatives_are_the_likeliest_tokens_of_the_distribution_sampled_from(
    engine: Engine,
    renderer: ChatRenderer,
    tmp_path: Path,
    judge: Any,  # noqa: ANN401 - a model of transformers
    temperature: float,
) -> None:
    async with client_of(engine, renderer, tmp_path, temperature=temperature) as (gateway, client):
        body = {**CHAT, "logprobs": True, "top_logprobs": 3}
        told = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
        record = await gateway.seal(KEY.id)
    wanted = likeliest(judge, record, temperature=temperature, count=3)
    span = next(placed.span for placed in placed_spans(record, origin=Origin.POLICY))
    assert span.logprobs is not None
    assert [item["logprob"] for item in told] == pytest.approx(span.logprobs.tolist())
    decode = renderer.tokenizer.decode
    for item, tops in zip(told, wanted, strict=True):
        assert [other["token"] for other in item["top_logprobs"]] == [decode([token]) for token, _ in tops]
        assert [other["logprob"] for other in item["top_logprobs"]] == pytest.approx([n for _, n in tops], abs=1e-4)
        assert all(other["bytes"] == list(other["token"].encode()) for other in item["top_logprobs"])


async def test_every_dialect_that_has_them_tells_the_same_alternatives(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    async with client_of(engine, renderer, tmp_path) as (_, client):
        chat = {**CHAT, "logprobs": True, "top_logprobs": 2, "seed": 7, "return_token_ids": True}
        whole = (await client.post("/v1/chat/completions", json=chat)).json()
        lines = (await client.post("/v1/chat/completions", json={**chat, "stream": True})).text.splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        ids = whole["prompt_token_ids"]
        bare = {"model": "kifu", "prompt": ids, "max_tokens": 12, "logprobs": 2, "seed": 7}
        plain = (await client.post("/v1/completions", json=bare)).json()["choices"][0]["logprobs"]
        asked = {"model": "kifu", "input": "hi", "max_output_tokens": 12}
        include = ["message.output_text.logprobs"]
        typed = (await client.post("/v1/responses", json={**asked, "include": include, "top_logprobs": 2})).json()
        untold = (await client.post("/v1/responses", json={**asked, "include": ["reasoning.encrypted_content"]})).json()
        beyond = [
            (await client.post("/v1/chat/completions", json={**chat, "top_logprobs": 6})).json(),
            (await client.post("/v1/chat/completions", json={**CHAT, "top_logprobs": 2})).json(),
            (await client.post("/v1/responses", json={**asked, "top_logprobs": 6})).json(),
        ]
    told = whole["choices"][0]["logprobs"]["content"]
    assert next(item["choices"][0]["logprobs"] for item in chunks if item["choices"][0]["finish_reason"]) == {
        "content": told,
        "refusal": None,
    }
    assert plain["token_logprobs"] == [item["logprob"] for item in told]
    for item, tops in zip(told, plain["top_logprobs"], strict=True):
        others = {other["token"]: other["logprob"] for other in reversed(item["top_logprobs"])}
        assert tops == {item["token"]: item["logprob"], **others}
    part = typed["output"][0]["content"][0]
    assert all(len(item["top_logprobs"]) == 2 for item in part["logprobs"])
    assert "".join(item["token"] for item in part["logprobs"]).startswith(part["text"])
    assert untold["output"][0]["content"][0]["logprobs"] == []
    assert [body["error"]["param"] for body in beyond] == ["top_logprobs"] * 3


async def test_seeds_choices_and_stops_mean_the_same_in_every_dialect_that_has_them(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    async with client_of(engine, renderer, tmp_path) as (gateway, client):

        async def texts(path: str, body: dict[str, Any]) -> list[str]:
            found = (await client.post(path, json=body)).json()["choices"]
            return [item["text"] if "text" in item else item["message"]["content"] for item in found]

        chat, bare = "/v1/chat/completions", "/v1/completions"
        prompt = {"model": "kifu", "prompt": "hi", "max_tokens": 12}
        for path, body in ((chat, CHAT), (bare, prompt)):
            first = await texts(path, {**body, "seed": 5, "n": 3})
            assert await texts(path, {**body, "seed": 5, "n": 3}) == first
            assert await texts(path, {**body, "seed": 6, "n": 3}) != first
            assert len(set(first)) == 3
            stop = first[0][2:4]
            cut = await texts(path, {**body, "seed": 5, "stop": stop})
            assert cut == [first[0].partition(stop)[0]]
        message = {**CHAT, "stop_sequences": [stop], "max_tokens": 40}
        ended = (await client.post("/v1/messages", json=message)).json()
        assert ended["stop_sequence"] in (stop, None)
        assert stop not in ended["content"][0]["text"]
        refused = await client.post("/v1/responses", json={"model": "kifu", "input": "x", "previous_response_id": "r"})
        record = await gateway.seal(KEY.id)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    assert len(record.turns) == 2 * (3 * 3 + 1) + 1
    assert gateway.delivered.fraction == 1.0


async def test_alternatives_are_told_again_after_a_restart(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    async with client_of(engine, renderer, tmp_path) as (_, client):
        first = await client.post("/v1/chat/completions", json=body)
        headers = dict(client.headers)
    with RunStore(tmp_path / "run") as store:
        how = Serving(max_context=256, vocabulary=600, alternatives=5)
        again = Gateway(sampler=engine.sampler, renderer=renderer, store=store, serving=how)
        assert again.recover() == (KEY.id,)
        headers["x-stainless-retry-count"] = "1"
        async with serving(again) as url, httpx2.AsyncClient(base_url=url, headers=headers) as client:
            replayed = await client.post("/v1/chat/completions", content=first.request.content)
    assert replayed.json() == first.json()
