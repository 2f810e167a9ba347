"""The remote engine with a gateway as its server: the same ids, the same logprobs, and a server that lies."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import numpy as np
import pytest

from kifu.engines import build_engine
from kifu.engines.hf import build
from kifu.engines.remote import RemoteSampler
from kifu.errors import EngineFailure, UsageError
from kifu.gateway import Gateway, Opened, Serving
from kifu.models import ModelFolder
from kifu.policy import EngineSpec, Machine, Request, ScoreRequest, ScriptedSampler
from kifu.records import BlobStore, Finish, RolloutKey, RunStore, Sampling, as_ints
from kifu.render import ChatRenderer
from kifu.testing.capture_wire import Asking, Reply, listening

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
IDS = [1, 70, 71, 2, 201]

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


def request(**sampling: Any) -> Request:  # noqa: ANN401 - fields
    asked = Sampling(**{"stop_ids": (2,), "stream": "s", **sampling})
    return Request(context="c", token_ids=as_ints(IDS), sampling=asked, turn=0, max_new_tokens=12)


@asynccontextmanager
async def answering(choice: dict[str, Any], *replies: Reply) -> AsyncIterator[tuple[RemoteSampler, list[Asking]]]:
    """A sampler whose server gives some replies and then always one choice, and what the server was asked."""
    asked: list[Asking] = []
    first = list(replies)

    async def handle(asking: Asking) -> Reply:
        asked.append(asking)
        return first.pop(0) if first else Reply(body=json.dumps({"choices": [choice]}).encode())

    async with listening(handle) as url:
        sampler = RemoteSampler(url, name="m", key="k")
        yield sampler, asked
        await sampler.aclose()


async def test_a_gateway_as_server_gives_the_models_own_ids_and_logprobs(
    tiny_model: ModelFolder, renderer: ChatRenderer, store: RunStore, live: Live
) -> None:
    engine = build(EngineSpec(model=str(tiny_model.path), machine=Machine(threads=1, max_slots=4), max_context=512))
    gateway = Gateway(
        sampler=engine.sampler,
        renderer=renderer,
        store=store,
        blobs=BlobStore(store.folder / "blobs"),
        serving=Serving(max_context=512, vocabulary=600),
    )
    async with live(gateway) as (opened, client):
        sampler = RemoteSampler(f"{str(client.base_url).rstrip('/')}{opened.path}", name="kifu", key=opened.model_key)
        first, again = await sampler.sample(request()), await sampler.sample(request())
        await sampler.aclose()
    record = await gateway.seal(KEY.id)
    whole = as_ints([*IDS, *first.token_ids.tolist()])
    positions = as_ints(np.arange(len(IDS), whole.size))
    asked = ScoreRequest(token_ids=whole, positions=positions, sampling=first.sampling)
    scores = (await engine.sampler.score([asked]))[0]
    engine.close()

    np.testing.assert_allclose(first.logprobs, scores.logprobs, atol=1e-5)
    assert first.token_ids.tolist() == again.token_ids.tolist()
    assert len(record.turns) == 1
    assert record.tape_ids(0).tolist() == whole.tolist()


async def test_a_gateway_over_a_gateway_records_the_same_tokens(
    serve: Serve, turns: Turns, live: Live, renderer: ChatRenderer, store: RunStore
) -> None:
    upstream = serve(turns("hello", "bye"))
    async with live(upstream) as (opened, client):
        url = f"{str(client.base_url).rstrip('/')}{opened.path}"
        sampler = RemoteSampler(url, name="kifu", key=opened.model_key)
        front = Gateway(sampler=sampler, renderer=renderer, store=store)
        key = RolloutKey(seed=3, step=0, group=1, member=0)
        async with live(front, key) as (_, agent):
            history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
            for _ in range(2):
                answer = await agent.post("/v1/chat/completions", json={"model": "kifu", "messages": history})
                history += [answer.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
        below, above = await upstream.seal(KEY.id), await front.seal(key.id)
        await sampler.aclose()
    assert [turn.text for turn in above.turns] == ["hello", "bye"] == [turn.text for turn in below.turns]
    assert above.tape_ids(0).tolist() == below.tape_ids(below.turns[-1].tape).tolist()
    assert above.sampled_tokens == below.sampled_tokens


GOOD = {"token_ids": [70, 2], "logprobs": {"token_logprobs": [-0.5, -0.1]}, "finish_reason": "stop"}


async def test_a_sound_answer_is_taken() -> None:
    async with answering(GOOD) as (sampler, _):
        found = await sampler.sample(request())
    assert (found.token_ids.tolist(), found.finish) == ([70, 2], Finish.STOP)
    assert found.sampled.tolist() == [True, True]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": None}, "numbers of token ids"),
        ({"token_ids": [70]}, "numbers of token ids"),
        ({"token_ids": [70, -1]}, "out of range"),
        ({"token_ids": [70, True]}, "out of range"),
        ({"logprobs": None}, "lacks"),
        ({"logprobs": {"token_logprobs": [-0.5, 3.0]}}, "out of range"),
        ({"finish_reason": "abort"}, "abort"),
        ({"prompt_token_ids": [1, 2]}, "another prompt"),
    ],
)
async def test_an_answer_that_cannot_be_recorded_is_a_failure_of_the_engine(
    changed: dict[str, Any], message: str
) -> None:
    async with answering({**GOOD, **changed}) as (sampler, _):
        with pytest.raises(EngineFailure, match=message):
            await sampler.sample(request())


async def test_what_the_server_would_not_report_is_not_asked_for() -> None:
    async with answering(GOOD) as (sampler, heard):
        for sampling, message in (({"top_p": 0.9}, "support"), ({"temperature": 0.5}, "temperature 1")):
            with pytest.raises(UsageError, match=message):
                await sampler.sample(request(**sampling))
    assert not heard


async def test_a_server_is_never_asked_to_score_and_the_refusal_says_what_can() -> None:
    asked = ScoreRequest(token_ids=as_ints(IDS), positions=as_ints([1]), sampling=Sampling(stream="s"))
    async with answering(GOOD) as (sampler, heard):
        with pytest.raises(UsageError, match="does not score 1 requests; use engine `hf`"):
            await sampler.score([asked])
    assert not heard


async def test_a_refusal_of_the_server_is_not_tried_again() -> None:
    async with answering(GOOD, Reply(status=400, body=b"no such model")) as (sampler, heard):
        with pytest.raises(EngineFailure, match="status 400: no such model"):
            await sampler.sample(request())
    assert len(heard) == 1


async def test_a_server_that_fails_for_a_moment_is_asked_again_under_one_key() -> None:
    async with answering(GOOD, Reply(status=503), Reply(drop=True)) as (sampler, heard):
        found = await sampler.sample(request())
    assert found.token_ids.tolist() == [70, 2]
    assert [item.headers["x-stainless-retry-count"] for item in heard] == ["0", "1", "2"]
    assert len({item.headers["idempotency-key"] for item in heard}) == 1
    assert {item.headers["authorization"] for item in heard} == {"Bearer k"}
    assert len({item.body for item in heard}) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "lacks 'choices'"),
    ],
)
async def test_an_answer_that_is_no_completion_is_a_failure_of_the_engine(body: bytes, message: str) -> None:
    async with answering(GOOD, Reply(body=body)) as (sampler, _):
        with pytest.raises(EngineFailure, match=message):
            await sampler.sample(request())


async def test_an_answer_without_an_end_and_a_redirection_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kifu.engines.remote.sampler.MAX_ANSWER_BYTES", 1 << 20)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    async with answering(GOOD, Reply(pieces=endless())) as (sampler, _):
        with pytest.raises(EngineFailure, match="more than 1048576 bytes"):
            await sampler.sample(request())
    assert sent < 64 << 20
    async with answering(GOOD, Reply(status=307, body=b"elsewhere")) as (sampler, heard):
        with pytest.raises(EngineFailure, match="status 307: elsewhere"):
            await sampler.sample(request())
    assert len(heard) == 1


def test_the_engine_is_found_by_its_name_and_refuses_to_train() -> None:
    engine = build_engine("remote", EngineSpec(options={"url": "http://127.0.0.1:1"}))
    with pytest.raises(UsageError, match="samples only"):
        engine.trainer.optim_step()
    for options, message in (({"uri": "x"}, "did you mean `url`"), ({"url": "x"}, "address"), ({}, "address")):
        with pytest.raises(UsageError, match=message):
            build_engine("remote", EngineSpec(options=options))
