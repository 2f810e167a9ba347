"""The check of capture gateways: kifu's own passes all of it, and a careless proxy fails just where it is careless."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import UsageError
from kifu.testing import (
    CASES,
    CaptureCheckError,
    Claims,
    FakeModel,
    Kept,
    KifuGateway,
    Met,
    NotOffered,
    Probe,
    Session,
    Token,
    run_cases,
)
from kifu.testing.capture_bench import all_once, logprobs_hold
from kifu.testing.capture_model import Written, logprobs_of
from kifu.testing.capture_wire import Asking, Reply, ask, listening


class Proxy:
    """Forwards chats, asks nobody for a key, keeps the first choice of the last call of every prompt, in memory."""

    name = "proxy"
    claims = Claims(
        not_claimed={"rule keys": "one user, one machine"}, not_offered={"pain-14 policy versions": "one version"}
    )

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[int, ...], tuple[Token, ...]]] = {}
        self._names = itertools.count()
        self._upstream = self._url = ""
        self._server: Any = None

    async def start(self, model: FakeModel, url: str) -> None:
        del model
        self._upstream = url
        self._server = listening(self._handle)
        self._url = await self._server.__aenter__()

    async def stop(self, *, kill: bool = False) -> None:
        if kill:
            raise NotOffered("it lives in this process")
        await self._server.__aexit__(None, None, None)

    async def open(self, task: str) -> Session:
        name = f"{task}-{next(self._names)}"
        self._kept[name] = {}
        return Session(id=name, base_url=f"{self._url}/{name}/v1", key="none", model="m")

    async def finish(self, session: Session, *, reward: float | None = None, has_failed: bool = False) -> Kept:
        del has_failed
        found = await self.read(session)
        return Kept(rows=found.rows, reward=0.0 if reward is None else reward)

    async def read(self, session: Session) -> Kept:
        return Kept(rows=tuple(self._kept[session.id].values()))

    def forbidden(self, session: Session) -> Sequence[Probe]:
        return (Probe(what="reward", method="POST", url=f"{self._url}/{session.id}/reward", body={"value": 1}),)

    async def publish(self, version: int) -> None:
        raise NotOffered("one version")

    async def _handle(self, asking: Asking) -> Reply:
        _, name, *rest = asking.path.split("/")
        try:
            body = json.loads(asking.body)
        except ValueError:
            return Reply(status=400)
        if rest == ["reward"] or not isinstance(body, dict):
            return Reply(status=200)
        asked = {**body, "stream": False, "logprobs": True, "return_token_ids": True}
        answer = await ask(f"{self._upstream}/{'/'.join(rest)}", body=asked)
        found = answer.json() or {}
        if answer.status == 200 and "token_ids" in found.get("choices", [{}])[0]:
            prompt, first = tuple(found["prompt_token_ids"]), found["choices"][0]
            values = [item["logprob"] for item in first["logprobs"]["content"]] if first["logprobs"] else []
            written = [
                Token(id=token, trained=True, logprob=value)
                for token, value in itertools.zip_longest(first["token_ids"], values)
            ]
            self._kept[name][prompt] = (*(Token(id=token) for token in prompt), *written)
        return Reply(status=answer.status, body=answer.body)


async def test_kifus_own_gateway_passes_every_case_that_can_be_asked(tmp_path: Path) -> None:
    report = await run_cases(KifuGateway(tmp_path / "run"))
    assert [result for result in report.results if result.met is Met.FAIL] == []
    absent = [result.case for result in report.results if result.met is Met.NOT_APPLICABLE]
    assert absent == ["pain-07 installation"]
    assert len(report.results) == len(CASES) >= 31


async def test_a_careless_proxy_fails_where_it_is_careless_and_nowhere_else() -> None:
    cases = ("pain-0", "pain-1", "defect", "rule retries", "rule keys", "rule invalid", "rule cut")
    report = await run_cases(Proxy(), cases=cases)
    failed = {result.case for result in report.failures}
    assert failed == {
        "pain-01 exact continuation",  # the server tokenizes the answer again
        "pain-04 streamed tool call",  # a stream is answered whole
        "pain-05 effective sampling",
        "pain-10 phantom reward",
        "pain-11 empty session",
        "defect-01 identical calls",
        "defect-02 n choices",
        "defect-03 constrained call",
        "defect-04 one call without logprobs",
        "defect-05 failure is not 0",
        "defect-06 agent writes its reward",
        "defect-07 nothing at random",  # equal prompts among ten calls
        "rule retries",
        "rule keys",
    }
    assert {result.case for result in report.results if result.met is Met.NOT_APPLICABLE} == {
        "pain-07 installation",
        "pain-14 policy versions",
        "pain-15 kill and restart",
        "pain-18 agent reads records",
        "defect-10 record survives",
    }
    by_name = {result.case: result for result in report.results}
    assert by_name["rule keys"].claimed == "one user, one machine"


PROMPT, IDS = (1, 70, 2), (80, 81, 2)


def written(*times: tuple[int, ...]) -> list[Written]:
    return [
        Written(mark="m", prompt=PROMPT, ids=ids, logprobs=logprobs_of(PROMPT, ids), version=0, body={})
        for ids in times
    ]


def row(*trained: int, ids: tuple[int, ...] = (*PROMPT, *IDS), shift: float = 0.0) -> tuple[Token, ...]:
    values = logprobs_of((), ids)
    return tuple(
        Token(id=token, trained=at in trained, logprob=values[at] + shift if at in trained else None)
        for at, token in enumerate(ids)
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((row(3, 4, 5),), None),
        ((row(3, 4),), "0 are trained"),
        ((row(2, 3, 4, 5),), "1 tokens are trained that were not sampled"),
        ((row(3, 4, 5), row(3, 4, 5)), "2 are trained"),
        ((row(3, 4, 5, ids=(1, 71, 2, *IDS)),), "0 are trained"),
        ((), "0 are trained"),
    ],
)
def test_a_record_is_right_when_every_token_is_trained_once_in_its_place(
    rows: tuple[tuple[Token, ...], ...], expected: str | None
) -> None:
    if expected is None:
        all_once(Kept(rows=rows), written(IDS))
        return
    with pytest.raises(CaptureCheckError, match=expected):
        all_once(Kept(rows=rows), written(IDS))


def test_two_equal_turns_need_two_places() -> None:
    with pytest.raises(CaptureCheckError, match="2 turns"):
        all_once(Kept(rows=(row(3, 4, 5),)), written(IDS, IDS))
    all_once(Kept(rows=(row(3, 4, 5), row(3, 4, 5))), written(IDS, IDS))


def test_a_logprob_under_another_prefix_is_found() -> None:
    assert "3 logprobs" in logprobs_hold(Kept(rows=(row(3, 4, 5),)))
    with pytest.raises(CaptureCheckError, match="recorded"):
        logprobs_hold(Kept(rows=(row(3, 4, 5, shift=0.01),)))


async def test_a_case_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="no case begins with 'pain-99'"):
        await run_cases(Proxy(), cases=["pain-99"])
