"""Many agents at once at a gateway that is killed again and again: what they were told is in the records, once."""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kifu.models import tiny_llama
from kifu.records import RunReader, Trajectory, rebuild_check
from kifu.testing.capture_contract import CaptureCheckError
from kifu.testing.capture_kifu import ADMIN, begin, end, free_port, kept_of, until_answers
from kifu.testing.capture_model import FakeModel, Line
from kifu.testing.capture_wire import Answer, WireError, ask

CALLS = 3
"""Of one agent."""
POINTS = ("wal.after_fsync", "wal.before_fsync")
"""Where a process kills itself: between the commit of a call and the end of its answer, and just before the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """What happened, counted by those who were there."""

    sessions: int
    calls: int
    """Calls that an agent was answered; each may have taken several tries."""
    tries: int
    left: int
    """Answers that an agent left in the middle, on purpose."""
    kills: int
    sampled: int
    """Tokens that the model wrote."""
    trained: int
    """Tokens in the records."""
    uncommitted: int
    """Tokens of turns that a kill took before they were committed; nobody was told of them."""


class _Weather:
    """The gateway's process: told where to die, and started again.

    Args:
        folder: for model and run.
        seed: of everything that is random.
        every: flushes of the log after which a process kills itself, about; calls that come together share one.
        kills: how often.
    """

    def __init__(self, folder: Path, *, seed: int, every: int, kills: int) -> None:
        self.dice = random.Random(seed)
        self.model = FakeModel(tiny_llama(folder / "tiny"))
        self.run = folder / "run"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.kills = 0
        self._every = every
        self._most = kills
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def serve(self, upstream: str) -> None:
        """Keep a gateway up until cancelled."""
        command = [sys.executable, "-c", "from kifu.cli import main; main()", "gateway", str(self.run)]
        command += ["--model", str(self.model.folder.path), "--upstream", upstream, "--port", str(self.port)]
        try:
            while True:
                env = {**os.environ, "KIFU_GATEWAY_ADMIN_KEY": ADMIN}
                if self.kills < self._most:
                    at = self.dice.randint(self._every // 2, self._every * 3 // 2)
                    env["KIFU_CRASH_AT"] = f"{POINTS[self.kills % len(POINTS)]}#{at}"
                self._process = begin(command, env=env)
                self._begun.set()
                code = await asyncio.to_thread(self._process.wait)
                if code != -9:
                    raise CaptureCheckError(f"the gateway's process ended with {code}")
                self.kills += 1
        finally:
            if self._process is not None:
                await end(self._process, kill=False)

    async def ready(self) -> None:
        """Wait until it answers for the first time."""
        await self._begun.wait()
        assert self._process is not None
        await until_answers(f"{self.url}/healthz", self._process)

    async def admin(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Ask as the owner, again while nobody answers."""
        while True:
            try:
                return await ask(f"{self.url}{path}", body=body, headers={"x-api-key": ADMIN}, timeout_s=60.0)
            except WireError:
                await asyncio.sleep(0.1)


async def storm(folder: Path, *, sessions: int, at_once: int, kills: int, seed: int = 0) -> Storm:
    """Run it and check every record.

    Args:
        folder: empty, for the run.
        sessions: agents, each with a rollout of its own and three calls.
        at_once: agents that work at the same time.
        kills: how often the gateway kills itself.
        seed: of everything that is random.

    Raises:
        CaptureCheckError: a call was lost, doubled, or stands in another agent's record.
    """
    weather = _Weather(folder, seed=seed, every=max(sessions * CALLS // (16 * (kills + 1)), 8), kills=kills)
    told: dict[str, list[str]] = {}
    gate = asyncio.Semaphore(at_once)
    async with weather.model.serving() as upstream:
        server = asyncio.create_task(weather.serve(upstream))
        try:
            await weather.ready()
            agents = asyncio.gather(*(_agent(weather, number, gate=gate, told=told) for number in range(sessions)))
            await asyncio.wait((server, agents), return_when=asyncio.FIRST_COMPLETED)
            if server.done():
                agents.cancel()
                server.result()
            await agents
            metrics = (await ask(f"{weather.url}/admin/metrics", method="GET", headers={"x-api-key": ADMIN})).json()
        finally:
            server.cancel()
            with suppress(asyncio.CancelledError):
                await server
    if metrics["open"] or metrics["under_way"]:
        raise CaptureCheckError(f"{metrics['open']} rollouts are open after all were sealed")
    return _audit(weather, told)


async def _agent(weather: _Weather, number: int, *, gate: asyncio.Semaphore, told: dict[str, list[str]]) -> None:
    """Three turns of one conversation, each asked until it is answered; some answers are left in the middle."""
    mark = f"case-{number}s"
    weather.model.say(mark, Line(is_random=True))
    async with gate:
        opened = await _open(weather, number)
        history: list[dict[str, str]] = []
        for turn in range(CALLS):
            history.append({"role": "user", "content": f"{mark} turn {turn}"})
            body = {"model": weather.model.folder.path.name, "messages": list(history), "stream": number % 2 == 0}
            text = await _answered(weather, opened, body)
            told.setdefault(opened["id"], []).append(text)
            history.append({"role": "assistant", "content": text})
        sealed = await weather.admin(f"/admin/rollouts/{opened['id']}/seal", {})
        if sealed.status not in (200, 404):  # 404: a kill took the answer to the first try, the seal stands
            raise CaptureCheckError(f"sealing {opened['id']}: {sealed.shown}")


async def _open(weather: _Weather, number: int) -> dict[str, Any]:
    """A rollout; where a kill took its keys, the next attempt of the same place."""
    for attempt in range(100):
        body = {"task": f"t{number}", "group": number // 999, "member": number % 999, "attempt": attempt}
        answer = await weather.admin("/admin/rollouts", body)
        if answer.status == 201:
            if attempt:
                weather.counts["reopened"] += 1
            found: dict[str, Any] = answer.json()
            return found
        lost = f"train/s0/t00000/g{number // 999:04d}/m{number % 999:03d}/a{attempt}"
        await weather.admin(f"/admin/rollouts/{lost}/seal", {})
    raise CaptureCheckError(f"no rollout could be opened for agent {number}")


async def _answered(weather: _Weather, opened: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    url, tries = f"{weather.url}{opened['path']}/v1/chat/completions", 0
    while True:
        headers = {"authorization": f"Bearer {opened['model_key']}", "x-stainless-retry-count": str(tries)}
        leave = 1 if tries == 0 and weather.dice.random() < 0.1 else None
        tries += 1
        weather.counts["tries"] += 1
        try:
            answer = await ask(url, body=body, headers=headers, timeout_s=60.0, leave_after=leave)
            if leave is not None:
                weather.counts["left"] += 1
                continue
        except WireError:
            await asyncio.sleep(0.05)
            continue
        if answer.status != 200:
            raise CaptureCheckError(f"a call of {opened['id']} got {answer.shown}")
        if not body["stream"]:
            return str(answer.json()["choices"][0]["message"]["content"])
        if "[DONE]" in answer.text:
            deltas = [item["choices"][0]["delta"] for item in answer.events() if isinstance(item, dict)]
            return "".join(delta.get("content") or "" for delta in deltas)
        await asyncio.sleep(0.05)


def _audit(weather: _Weather, told: Mapping[str, list[str]]) -> Storm:
    records = {record.id: record for record in RunReader(weather.run).trajectories()}
    spoken = {name: record for name, record in records.items() if record.sampled_tokens}
    if set(spoken) != set(told):
        raise CaptureCheckError(f"{len(told)} agents were answered, {len(spoken)} records hold turns")
    for name, texts in told.items():
        check_record(records[name], texts, weather.model)
    sampled = sum(len(item.ids) for item in weather.model.written)
    trained = sum(record.sampled_tokens for record in records.values())
    return Storm(
        sessions=len(told),
        calls=sum(map(len, told.values())),
        tries=weather.counts["tries"],
        left=weather.counts["left"],
        kills=weather.kills,
        sampled=sampled,
        trained=trained,
        uncommitted=sampled - trained,
    )


def check_record(record: Trajectory, texts: list[str], model: FakeModel) -> None:
    """One record: the turns an agent was told, in order, each once, and each as the model wrote it for this agent."""
    turns = [turn.text for turn in record.turns if turn.text]
    if turns != texts:
        raise CaptureCheckError(f"{record.id}: the agent was told {texts}, the record holds {turns}")
    problems = rebuild_check(record)
    if problems:
        raise CaptureCheckError(f"{record.id}: {problems[0]}")
    mark = f"case-{int(record.task.id[1:])}s"
    written = {(item.prompt, item.ids) for item in model.of(mark)}
    rows = kept_of(record).rows
    for turn in record.turns:
        if turn.stop > turn.start:
            ids = [token.id for token in rows[turn.tape]]
            place = (tuple(ids[: turn.start]), tuple(ids[turn.start : turn.stop]))
            prompts = [prompt for prompt, answer in written if answer == place[1]]
            if not any(place[0] == prompt for prompt in prompts):
                raise CaptureCheckError(f"{record.id}: turn {turn.index} was not written for this agent in this place")
