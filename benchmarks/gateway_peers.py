"""Other capture gateways as subjects of the check: started as their pages say, read as their trainers read them.

What a gateway does not claim is named here, so that a failure is not held against it.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kifu.testing import CaptureCheckError, Claims, FakeModel, Kept, NotOffered, Probe, Session, Token
from kifu.testing.capture_kifu import begin, end, free_port, until_answers
from kifu.testing.capture_wire import ask

NAME = "capture-model"
KEY = "sk-the-servers-key"
CHAT_ONLY = "it says it is a proxy of chat completions"


def row_of(
    prompt: Sequence[int],
    ids: Sequence[int],
    *,
    logprobs: Sequence[float] | None,
    **about: Any,  # noqa: ANN401 - of a token
) -> tuple[Token, ...]:
    """A call as the row a trainer makes of it; no logprobs where they are not as many as the ids."""
    values = list(logprobs or ())
    fits = len(values) == len(ids)
    trained = about.pop("trained", True)
    answer = [
        Token(id=token, trained=trained, logprob=values[at] if fits else None, **about) for at, token in enumerate(ids)
    ]
    return (*(Token(id=token) for token in prompt), *answer)


class Peer:
    """What the adapters share: one process on one port.

    Args:
        python: interpreter of the gateway's environment.
        folder: for what it writes.
    """

    name = ""
    claims = Claims()

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: Any = None
        self._names = 0

    async def run(self, *arguments: str, ready: str) -> None:
        """Start and wait."""
        quiet = {"HYDRA_FULL_ERROR": "1", "PYTHONUNBUFFERED": "1"}
        self._process = begin([str(self.python), *arguments], env={**os.environ, **quiet})
        await until_answers(f"{self.url}{ready}", self._process)

    async def stop(self, *, kill: bool = False) -> None:
        """End the process."""
        if self._process is not None:
            await end(self._process, kill=kill)
            self._process = None

    async def call(self, path: str, body: Any = None, *, method: str = "POST") -> Any:  # noqa: ANN401 - JSON
        """Ask as its owner."""
        answer = await ask(f"{self.url}{path}", body=body, method=method, headers={"authorization": f"Bearer {KEY}"})
        if answer.status not in (200, 201, 204):
            raise CaptureCheckError(f"{method} {path}: {answer.shown}")
        return answer.json()


class Rllm(Peer):
    """rllm-model-gateway 0.1.0: sessions in the path, one trace a call in SQLite, no keys, no rewards.

    A trace whose logprobs are not as many as its ids is taken as not trained: whoever reads it can tell.
    """

    name = "rllm-model-gateway 0.1.0"
    claims = Claims(
        not_claimed={
            "rule keys": "no authentication yet: its source says where it is to be added",
            "pain-18 agent reads records": "no authentication yet: its source says where it is to be added",
            "pain-01 exact continuation": "the server behind it owns tokenization",
            "rule late call": "sessions do not end",
            "rule end after record": "traces of streams are written after the stream",
            "pain-20 responses": "it forwards the call; the model server's answer holds no ids there",
            "pain-20 messages": "it forwards the call; the model server's answer holds no ids there",
        },
        not_offered=dict.fromkeys(
            (
                "pain-10 phantom reward",
                "defect-05 failure is not 0",
                "defect-06 agent writes its reward",
                "defect-08 exact reward",
            ),
            "it has no rewards",
        ),
    )

    async def start(self, model: FakeModel, url: str) -> None:
        """``python -m rllm_model_gateway`` with SQLite and traces written before a whole answer is given."""
        del model
        config = self.folder / "config.yaml"
        config.write_text("sync_traces: true\n")
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--worker", url, "--config", str(config)]
        await self.run("-m", "rllm_model_gateway", *place, "--db-path", str(self.folder / "traces.db"), ready="/health")

    async def open(self, task: str) -> Session:
        """``POST /sessions``."""
        self._names += 1
        found = await self.call("/sessions", {"session_id": f"{task}-{self._names}"})
        return Session(id=found["session_id"], base_url=f"{self.url}{found['url']}", key="none", model=NAME)

    async def finish(self, session: Session, *, reward: float | None = None, has_failed: bool = False) -> Kept:
        """``POST /admin/flush``, then the traces."""
        if reward is not None or has_failed:
            raise NotOffered("it has no rewards")
        await self.call("/admin/flush", {})
        count, still = -1, 0
        while still < 4:  # traces of streams are written by and by
            found = len((await self.read(session)).rows)
            count, still = found, still + 1 if found == count else 0
            await asyncio.sleep(0.15)
        return await self.read(session)

    async def read(self, session: Session) -> Kept:
        """``GET /sessions/{id}/traces``; a call is a row, its version stands in the server's own answer."""
        traces = await self.call(f"/sessions/{session.id}/traces", method="GET")
        rows, withheld = [], 0
        for trace in traces:
            asked, answered = trace["raw_request"] or {}, trace["raw_response"] or {}
            used = {name: asked.get(name) for name in ("temperature", "top_p")}
            about = {"sampling": used, "version": answered.get("policy_version")}
            prompt, ids, values = trace["prompt_token_ids"], trace["completion_token_ids"], trace["logprobs"] or ()
            fits = bool(prompt) and len(values) == len(ids)
            withheld += 0 if fits else len(ids)
            rows.append(row_of(prompt, ids, logprobs=values, trained=fits, **about))
        return Kept(rows=tuple(rows), withheld=withheld, text=str([sorted(trace) for trace in traces]))

    def forbidden(self, session: Session) -> Sequence[Probe]:
        """Traces and workers."""
        return (
            Probe(what="reading traces", method="GET", url=f"{self.url}/sessions/{session.id}/traces"),
            Probe(what="the list of workers", method="GET", url=f"{self.url}/admin/workers"),
        )

    async def publish(self, version: int) -> None:
        """It learns of no versions."""


class AgentLightning(Peer):
    """agentlightning 1.0.2's server: rollouts in the path, events in memory, one key for agents and owner."""

    name = "agentlightning 1.0.2"
    claims = Claims(
        not_claimed={
            "pain-01 exact continuation": "the server behind it owns tokenization",
            "pain-04 streamed tool call": "says `Streaming responses are not supported`",
            "pain-20 chat stream": "says `Streaming responses are not supported`",
            "rule end after record": "says `Streaming responses are not supported`",
            "rule client leaves": "says `Streaming responses are not supported`",
            "pain-20 responses": CHAT_ONLY,
            "pain-20 messages": CHAT_ONLY,
            "pain-20 models": CHAT_ONLY,
            "pain-15 kill and restart": "its store says that it is in memory",
            "defect-10 record survives": "its store says that it is in memory",
        },
    )

    async def start(self, model: FakeModel, url: str) -> None:
        """``python -m agentlightning.server`` with a key, then the model is registered."""
        del model
        settings = [f"key={KEY}", f"default_proxy.model_name={NAME}", "host=127.0.0.1", f"port={self.port}"]
        settings += [f"hydra.run.dir={self.folder}", "hydra.output_subdir=null"]
        await self.run("-m", "agentlightning.server", *settings, ready="/healthz")
        self._model = url
        await self.publish(0)

    async def open(self, task: str) -> Session:
        """``POST /api/rollouts``."""
        found = (await self.call("/api/rollouts", [{"input": {"data_id": task}}]))[0]["rollout_id"]
        await self.call(f"/api/rollouts/{found}", {"status": {"state": "running"}}, method="PATCH")
        path = f"/proxy/rollout/{found}/attempt/0/mode/train/openai/v1"
        return Session(id=found, base_url=f"{self.url}{path}", key=KEY, model=NAME)

    async def finish(self, session: Session, *, reward: float | None = None, has_failed: bool = False) -> Kept:
        """The reward is an event; the rollout succeeds or fails."""
        if reward is not None:
            event = {"event_type": "reward", "data": {"value": reward}}
            await self.call(f"/api/rollouts/{session.id}/attempt/0/events", event)
        state = "failed" if has_failed else "succeeded"
        await self.call(f"/api/rollouts/{session.id}", {"status": {"state": state}}, method="PATCH")
        return await self.read(session)

    async def read(self, session: Session) -> Kept:
        """``format=triplet`` as its rollout manager reads it; what is missing is filled in as its trainer does it."""
        events = await self.call(f"/api/rollouts/{session.id}/events?format=triplet", method="GET")
        raw = await self.call(f"/api/rollouts/{session.id}/events", method="GET")
        detail = await self.call(f"/api/rollouts/{session.id}", method="GET")
        calls = [event["data"] for event in events if event["event_type"] == "model_request"]
        used = {_key(event["data"]): _sampling(event["data"]["request"]) for event in raw if "request" in event["data"]}
        kept = [call for call in calls if call["prompt_token_ids"] and call["response_token_ids"]]
        sized = all(len(call["response_log_probs"] or ()) == len(call["response_token_ids"]) for call in kept)
        rows = [
            row_of(
                call["prompt_token_ids"],
                call["response_token_ids"],
                logprobs=call["response_log_probs"] if sized else None,
                version=call["server"]["version"],
                sampling=used.get(tuple(call["prompt_token_ids"])),
            )
            for call in kept
        ]
        rewards = [event["data"]["value"] for event in events if event["event_type"] == "reward"]
        state = detail["rollout"]["status"]["state"]
        filled = 0.0 if kept else None  # `agentlightning.reward_fillna_value` of its trainer's config
        return Kept(rows=tuple(rows), reward=rewards[-1] if rewards else filled, has_failed=state == "failed")

    def forbidden(self, session: Session) -> Sequence[Probe]:
        """Rewards, events and the pause of the proxy."""
        mine = f"{self.url}/api/rollouts/{session.id}"
        event = {"event_type": "reward", "data": {"value": 1.0}}
        return (
            Probe(what="reward", method="POST", url=f"{mine}/attempt/0/events", body=event),
            Probe(what="reading events", method="GET", url=f"{mine}/events"),
            Probe(what="the proxy's state", method="GET", url=f"{self.url}/proxy/state"),
        )

    async def publish(self, version: int) -> None:
        """The model is registered again with its version."""
        await self.call("/api/models", [{"model": NAME, "endpoint": f"{self._model}/v1", "version": version}])


def _key(data: Mapping[str, Any]) -> tuple[int, ...]:
    answer = data.get("response") or {}
    return tuple(answer.get("prompt_token_ids") or ())


def _sampling(request: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: request.get(name) for name in ("temperature", "top_p")}
