"""Two hundred agents at once, each with its own rollout, some of which leave or ask twice: nothing is mixed up."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import httpx2

from kifu.gateway import Gateway, Limits, Opened
from kifu.policy import Generation, Request, ScriptedSampler
from kifu.records import RolloutKey, TaskRef

AGENTS, CALLS = 200, 3

Serve = Callable[..., Gateway]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]


async def test_agents_at_once_get_their_own_answers_and_their_own_records(
    serve: Serve, live: Live, spell: Callable[[str], list[int]]
) -> None:
    dice = random.Random(7)

    class Echo(ScriptedSampler):
        """Writes the rollout's own name, after a while."""

        async def sample(self, request: Request) -> Generation:
            await asyncio.sleep(dice.random() / 50)
            return await super().sample(request)

    gateway = serve(Echo(lambda request: [*spell(request.sampling.stream[-4:]), 2]), limits=Limits(calls=AGENTS))
    async with live(gateway) as (_, client):

        async def play(number: int) -> int:
            key = RolloutKey(seed=3, step=0, group=1, member=number)
            name = f"{number:04d}"
            opened = await gateway.open(key, TaskRef(id=name))
            headers = {"authorization": f"Bearer {opened.model_key}"}
            messages: list[dict[str, str]] = []
            for turn in range(CALLS):
                messages.append({"role": "user", "content": f"{name} {turn}"})
                body = {"model": "kifu", "messages": messages}
                if number % 5 == turn:
                    first = asyncio.create_task(client.post("/v1/chat/completions", json=body, headers=headers))
                    await asyncio.sleep(0.005)
                    first.cancel()
                    await asyncio.gather(first, return_exceptions=True)
                again = {**headers, "x-stainless-retry-count": "1"} if number % 5 == turn else headers
                answer = await client.post("/v1/chat/completions", json=body, headers=again)
                said = answer.json()["choices"][0]["message"]["content"]
                assert said == name
                messages.append({"role": "assistant", "content": said})
            record = await gateway.seal(key.id)
            assert [turn.text for turn in record.turns if turn.text] == [name] * CALLS
            return record.sampled_tokens

        sampled = await asyncio.gather(*(play(number) for number in range(AGENTS)))
    metrics = gateway.metrics()
    assert sampled == [CALLS * 5] * AGENTS
    assert metrics["sampled_tokens"] == metrics["delivered_tokens"] == AGENTS * CALLS * 5
    assert metrics["forks"] == metrics["quarantined"] == metrics["failed"] == 0
