"""Agents as functions of a file: a process of its own for each attempt, and what ends an attempt from outside."""

import asyncio
import os
import signal
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from kifu.envs import Task
from kifu.gateway import Forked, Gateway, Outside, Ran
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, StopReason

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
TASK = Task(id="t", data={"prompt": "say it"})
ASK = """
import json, os, urllib.request

def ask(text):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    asked.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""

Serve: TypeAlias = Callable[..., Gateway]
Turns: TypeAlias = Callable[..., ScriptedSampler]
Written: TypeAlias = Callable[[str], Forked]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """An agent of the given source, which may ask the policy; its function is called solve."""

    def make(source: str) -> Forked:
        file = tmp_path / "mine.py"
        file.write_text(ASK + textwrap.dedent(source))
        return Forked(file, "solve")

    return make


@asynccontextmanager
async def outside(gateway: Gateway, agent: Forked, *, timeout_s: float = 60.0) -> AsyncIterator[Outside]:
    """The agent against a gateway that listens; an answer counts as right when it is `yes`."""
    async with serving(gateway) as url:
        try:
            yield Outside(
                gateway=gateway, url=url, agent=agent, verify=lambda task, ran: ran.text == "yes", timeout_s=timeout_s
            )
        finally:
            await agent.close()


def places(count: int) -> list[tuple[RolloutKey, Task]]:
    return [(replace(KEY, member=at), TASK) for at in range(count)]


async def test_a_file_that_knows_nothing_of_kifu_is_asked_and_recorded(
    serve: Serve, turns: Turns, written: Written
) -> None:
    agent = written("def solve(task):\n    return ask(task['prompt'])\n")
    async with outside(serve(turns("yes")), agent) as attempts:
        [record] = await attempts.run(places(1))
    assert (record.reward, record.turns[0].text, record.environment.id) == (1.0, "yes", "file:mine.py:solve")
    assert [event.detail for event in record.turns[0].events if event.kind == "agent.answered"] == [{"text": "yes"}]


async def test_attempts_run_at_once_with_keys_of_their_own_and_share_no_state(
    serve: Serve, turns: Turns, written: Written
) -> None:
    agent = written(
        """
        seen = []

        async def solve(task):
            seen.append(os.environ["OPENAI_API_KEY"])
            ask("hello")
            return json.dumps([seen, os.getpid()])
        """
    )
    gateway, answers = serve(turns("yes")), list[str]()
    async with outside(gateway, agent) as attempts:

        def keep(task: Task, ran: Ran) -> bool:
            answers.append(ran.text)
            return True

        records = await replace(attempts, verify=keep).run(places(6))
    assert [len(record.turns) for record in records] == [1] * 6
    assert len(set(answers)) == 6, "neither key nor process is shared"
    assert all(text.count("sk-kifu") == 1 for text in answers), "what one attempt stored no other sees"


async def test_what_a_file_imports_is_imported_once(
    tmp_path: Path, serve: Serve, turns: Turns, written: Written
) -> None:
    log = tmp_path / "imports"
    (tmp_path / "heavy_library.py").write_text(f"with open({str(log)!r}, 'a') as log:\n    log.write('x')\n")
    agent = written("import heavy_library\n\ndef solve(task):\n    return ask('hello')\n")
    async with outside(serve(turns("yes")), agent) as attempts:
        records = await attempts.run(places(4))
    assert ([record.reward for record in records], log.read_text()) == ([1.0] * 4, "x")


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def solve(task):\n    raise ValueError('lost')\n", "ValueError: lost (mine.py, line"),
        ("def solve(task):\n    os.kill(os.getpid(), 9)\n", "ended without an answer, wait status 9"),
        ("def solve(task):\n    raise SystemExit(3)\n", "SystemExit: 3"),
        ("import no_such_library\n", "cannot run it: ModuleNotFoundError: No module named 'no_such_library'"),
        ("def other(task):\n    return ''\n", "has no attribute 'solve'"),
    ],
)
async def test_an_agent_that_breaks_is_an_infrastructure_error_that_says_why(
    serve: Serve, turns: Turns, written: Written, source: str, detail: str
) -> None:
    async with outside(serve(turns("yes")), written(source)) as attempts:
        [record] = await attempts.run(places(1))
    assert (record.outcome.reason, record.reward) == (StopReason.AGENT_ERROR, None)
    assert detail in record.outcome.detail


async def test_an_attempt_whose_time_is_over_ends_with_all_it_started(
    tmp_path: Path, serve: Serve, turns: Turns, written: Written
) -> None:
    pids = tmp_path / "pids"
    agent = written(
        f"""
        import subprocess, sys, time

        def solve(task):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
            time.sleep(100)
        """
    )
    async with outside(serve(turns("yes")), agent, timeout_s=8.0) as attempts:
        [record] = await attempts.run(places(1))
    assert (record.outcome.reason, record.reward) == (StopReason.TIME_LIMIT, None)
    waits = time.monotonic() + 20
    while any(_runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < waits, "a process of an ended attempt is still there"
        await asyncio.sleep(0.05)


async def test_a_host_that_dies_spoils_the_attempts_under_way_and_no_later_one(
    serve: Serve, turns: Turns, written: Written
) -> None:
    agent = written("def solve(task):\n    os.kill(os.getppid(), 9)\n    return ask('x')\n")
    gateway = serve(turns("yes"))
    async with outside(gateway, agent) as attempts:
        [spoiled] = await attempts.run(places(1))
        agent.file.write_text(ASK + "\ndef solve(task):\n    return ask('x')\n")
        later = await attempts.attempt(replace(KEY, member=1), TASK)
    assert (spoiled.outcome.reason, spoiled.reward) == (StopReason.AGENT_ERROR, None)
    assert later.reward == 1.0


async def test_no_process_is_left_when_its_owner_is_gone(tmp_path: Path, written: Written) -> None:
    pid = tmp_path / "pid"
    agent = written(
        f"import time\n\ndef solve(task):\n    open({str(pid)!r}, 'w').write(str(os.getpid()))\n    time.sleep(99)\n"
    )
    host = await agent._started()
    await host.send({"job": 1, "task": {}, "environment": {}})
    waits = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < waits
        await asyncio.sleep(0.05)
    assert host.process.stdin is not None
    host.process.stdin.close()  # as when kifu is killed
    await asyncio.wait_for(host.process.wait(), 20)
    assert not _runs(int(pid.read_text()))
    await agent.close()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_an_answer_is_what_was_returned_else_what_was_printed() -> None:
    assert (Ran(value=7).text, Ran(output=" x \n").text, Ran(value="", output="x").text) == ("7", "x", "")
