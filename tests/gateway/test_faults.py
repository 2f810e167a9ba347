"""A gateway killed between commit and answer while two hundred agents work, leave and ask again."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from kifu.gateway import Gateway, Opened
from kifu.models import ModelFolder
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, TaskRef
from kifu.testing import CaptureCheckError, FakeModel
from kifu.testing.capture_model import Written, logprobs_of
from kifu.testing.capture_storm import CALLS, check_record, storm

AGENTS, KILLS = 200, 2


async def test_no_committed_call_is_lost_doubled_or_mixed_up_when_the_gateway_is_killed(tmp_path: Path) -> None:
    found = await storm(tmp_path, sessions=AGENTS, at_once=AGENTS, kills=KILLS, seed=1)
    assert (found.sessions, found.calls) == (AGENTS, AGENTS * CALLS)
    assert 1 <= found.kills <= KILLS
    assert found.trained + found.uncommitted == found.sampled
    assert found.left > 0
    assert found.tries > found.calls


async def test_the_audit_of_a_storm_finds_what_is_lost_and_what_is_anothers(
    serve: Callable[..., Gateway],
    turns: Callable[..., ScriptedSampler],
    live: Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]],
    tiny_model: ModelFolder,
) -> None:
    gateway, key = serve(turns("hello")), RolloutKey(seed=3, step=0, group=0, member=1)
    async with live(gateway) as (_, client):
        opened = await gateway.open(key, TaskRef(id="t7"))
        headers = {"authorization": f"Bearer {opened.model_key}"}
        body = {"model": "kifu", "messages": [{"role": "user", "content": "case-7s"}]}
        await client.post("/v1/chat/completions", json=body, headers=headers)
    record = await gateway.seal(key.id)
    turn, ids = record.turns[0], record.tape_ids(0).tolist()
    prompt, answer = tuple(ids[: turn.start]), tuple(ids[turn.start : turn.stop])
    model = FakeModel(tiny_model)

    def wrote(mark: str, before: tuple[int, ...]) -> Written:
        return Written(mark=mark, prompt=before, ids=answer, logprobs=logprobs_of(before, answer), version=0, body={})

    model.written = [wrote("case-7s", prompt)]
    check_record(record, ["hello"], model)
    with pytest.raises(CaptureCheckError, match="was told"):
        check_record(record, ["hello", "hello"], model)
    for other in (wrote("case-8s", prompt), wrote("case-7s", prompt[1:])):
        model.written = [other]
        with pytest.raises(CaptureCheckError, match="not written for this agent"):
            check_record(record, ["hello"], model)
