"""kifu's own gateway as a subject of the capture check: ``kifu gateway``, asked over HTTP, read from its run folder."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kifu.records import Origin, RunReader, Span, Trajectory
from kifu.testing.capture_contract import CaptureCheckError, Claims, Kept, Probe, Row, Session, Token
from kifu.testing.capture_model import FakeModel
from kifu.testing.capture_wire import WireError, ask

ADMIN = "sk-admin-of-the-check"
START_S = 120.0


class KifuGateway:
    """Implements `CaptureSubject`.

    Args:
        folder: for the run's records.
    """

    name = "kifu"
    claims = Claims()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._model = ""
        self._opened = 0
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, model: FakeModel, url: str) -> None:
        """Start the process and wait until it listens."""
        self._model = model.folder.path.name
        command = [sys.executable, "-c", "from kifu.cli import main; main()", "gateway", str(self._folder)]
        command += ["--model", str(model.folder.path), "--upstream", url, "--port", str(self._port)]
        self._process = begin(command, env={**os.environ, "KIFU_GATEWAY_ADMIN_KEY": ADMIN})
        await until_answers(f"{self._url}/healthz", self._process)

    async def stop(self, *, kill: bool = False) -> None:
        """End the process."""
        if self._process is not None:
            await end(self._process, kill=kill)
            self._process = None

    async def open(self, task: str) -> Session:
        """Open a rollout."""
        self._opened += 1
        found = await self._admin("/admin/rollouts", {"task": task, "member": self._opened})
        return Session(
            id=found["id"],
            base_url=f"{self._url}{found['path']}/v1",
            key=found["model_key"],
            model=self._model,
            judge_key=found["verdict_key"],
        )

    async def finish(self, session: Session, *, reward: float | None = None, has_failed: bool = False) -> Kept:
        """Judge, seal, read."""
        if reward is not None:
            path = f"/r/{session.id}/verdict"
            await self._admin(path, {"success": None, "score": reward}, key=session.judge_key)
        await self._admin(f"/admin/rollouts/{session.id}/seal", {"reason": "agent_error"} if has_failed else {})
        return await self.read(session)

    async def read(self, session: Session) -> Kept:
        """The record as it stands in the run folder."""
        record = await asyncio.to_thread(RunReader(self._folder).find, session.id)
        return kept_of(record)

    def forbidden(self, session: Session) -> Sequence[Probe]:
        """Verdicts and administration."""
        admin, mine = f"{self._url}/admin", f"{self._url}/r/{session.id}"
        return (
            Probe(what="reward", method="POST", url=f"{mine}/verdict", body={"success": True}),
            Probe(what="the list of rollouts", method="GET", url=f"{admin}/rollouts"),
            Probe(what="the metrics", method="GET", url=f"{admin}/metrics"),
            Probe(what="opening a rollout", method="POST", url=f"{admin}/rollouts", body={"task": "x"}),
            Probe(what="sealing", method="POST", url=f"{admin}/rollouts/{session.id}/seal", body={}),
        )

    async def publish(self, version: int) -> None:
        """The model says its version with every answer."""

    async def _admin(self, path: str, body: Mapping[str, Any], *, key: str = ADMIN) -> Any:  # noqa: ANN401 - JSON
        answer = await ask(f"{self._url}{path}", body=body, headers={"x-api-key": key})
        if answer.status not in (200, 201):
            raise CaptureCheckError(f"{path}: {answer.shown}")
        return answer.json()


def kept_of(record: Trajectory) -> Kept:
    """A record as rows: each tape's whole sequence, what it shares with its parent counted on the parent."""
    rows: list[Row] = []
    withheld = 0
    for at, tape in enumerate(record.tapes):
        shared = (
            [Token(id=int(token)) for token in record.tape_ids(at)[: tape.fork_at]] if tape.parent is not None else []
        )
        rows.append((*shared, *(token for span in tape.spans for token in _tokens(span))))
        withheld += sum(len(span) for span in tape.spans if span.origin is Origin.EXTERNAL)
    events = [[event.kind, dict(event.detail)] for turn in record.turns for event in turn.events]
    return Kept(
        rows=tuple(rows),
        withheld=withheld,
        reward=record.reward,
        has_failed=record.outcome.infra_error,
        text=json.dumps([record.outcome.reason, record.outcome.detail, events], default=str),
    )


def _tokens(span: Span) -> list[Token]:
    if span.origin is not Origin.POLICY:
        return [Token(id=int(token)) for token in span.token_ids]
    assert span.logprobs is not None
    assert span.sampling is not None
    used = {"temperature": span.sampling.temperature or 0.0, "top_p": span.sampling.top_p}
    pairs = zip(span.token_ids.tolist(), span.logprobs.tolist(), strict=True)
    return [
        Token(id=token, trained=True, logprob=logprob, version=span.policy_version, sampling=used)
        for token, logprob in pairs
    ]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def begin(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a gateway's process; what it prints is not shown."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=env, stdin=quiet, stdout=quiet, stderr=quiet)


async def until_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server says 200.

    Raises:
        CaptureCheckError: it ended, or did not within two minutes.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_S
    while loop.time() < deadline:
        if process.poll() is not None:
            raise CaptureCheckError(f"{url}: the gateway's process ended with {process.returncode}")
        try:
            if (await ask(url, method="GET", timeout_s=2.0)).status == 200:
                return
        except WireError:
            await asyncio.sleep(0.05)
    raise CaptureCheckError(f"{url}: no answer within {START_S:g} s")


async def end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """End a process that was started here, kindly or by SIGKILL."""
    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    try:
        await asyncio.to_thread(process.wait, 20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait, 20.0)
