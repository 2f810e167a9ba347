"""The gateway killed between record and answer: the retry gets the recorded answer, nothing is sampled twice."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kifu.models import ModelFolder

SERVER = """
import asyncio, json, sys
from pathlib import Path
from kifu.gateway import Gateway, Serving
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, RunStore, TaskRef
from kifu.render import dialect, load_renderer

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
MODEL, OUT, PID = sys.argv[1:]

async def main():
    renderer = load_renderer(Path(MODEL), dialect=dialect("hermes"))
    text = renderer.tokenizer.encode(f"process {PID}").tolist()
    with RunStore(Path(OUT)) as store:
        sampler = ScriptedSampler(lambda _: [*text, 2])
        gateway = Gateway(sampler=sampler, renderer=renderer, store=store, mint_key=lambda: next(keys))
        if not gateway.recover():
            await gateway.open(KEY, TaskRef(id="t"))
        async with serving(gateway) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        record = await gateway.seal(KEY.id)
        print(json.dumps([record.sampled_tokens, [turn.text for turn in record.turns], len(record.tapes)]), flush=True)

keys = iter(["sk-model", "sk-verdict"])
asyncio.run(main())
"""


@contextmanager
def process(model: Path, out: Path, name: str, *, crash: str | None = None) -> Iterator[tuple[str, Any]]:
    """A gateway in a process; gives its address and itself."""
    environment = {key: value for key, value in os.environ.items() if key != "KIFU_CRASH_AT"}
    if crash is not None:
        environment["KIFU_CRASH_AT"] = crash
    command = [sys.executable, "-c", SERVER, str(model), str(out), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        url = child.stdout.readline().strip()
        assert url, child.stderr.read()
        try:
            yield url, child
        finally:
            child.kill()


def read(url: str, body: dict[str, Any], *, headers: dict[str, str], into: list[str]) -> None:
    """Read a stream piece by piece."""
    with httpx2.stream("POST", url, json=body, headers=headers) as response:
        into.extend(response.iter_text())


@pytest.mark.parametrize("point", ["wal.before_fsync#2", "wal.after_fsync#2"])
def test_a_kill_between_record_and_answer_neither_loses_nor_doubles_a_call(
    tmp_path: Path, tiny_model: ModelFolder, point: str
) -> None:
    body = {"model": "kifu", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    agent = {"authorization": "Bearer sk-model"}
    with process(tiny_model.path, tmp_path, "one", crash=point) as (url, child):
        seen: list[str] = []
        with pytest.raises(httpx2.TransportError):
            read(f"{url}/v1/chat/completions", body, headers=agent, into=seen)
        assert child.wait(30) == -9
    assert "process" not in "".join(seen)
    assert "[DONE]" not in "".join(seen)

    with process(tiny_model.path, tmp_path, "two") as (url, child):
        retry = {**agent, "x-stainless-retry-count": "1"}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, headers=retry).text
        assert answer.endswith("data: [DONE]\n\n")
        child.stdin.write("\n")
        child.stdin.flush()
        tokens, texts, tapes = json.loads(child.stdout.readline())
    written = [text for text in texts if text]
    # What was written and not flushed survives the death of a process, not that of a machine: either may be found.
    assert written in (["process one"], ["process two"])
    assert written == ["process one"] or point == "wal.before_fsync#2"
    assert written[0] in answer
    assert tapes == 1
    assert tokens > 0
