"""Agents that know nothing of kifu, run and recorded: a function, a program, and all that goes wrong with them."""

import asyncio
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kifu.envs import Task
from kifu.errors import UsageError
from kifu.gateway import Command, Endpoint, Function, Gateway, Outside, Ran, agent
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, StopReason, Trajectory, Verdict

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
TASK = Task(id="t", data={"prompt": "say {model}", "answer": "hello"})
PROGRAM = """
import json, os, sys, urllib.request
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
asked.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
with urllib.request.urlopen(asked) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
secrets = [name for name in os.environ if name.startswith("KIFU_") or os.environ[name] == "sk-vendor"]
assert not secrets, secrets
"""

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]


def call(endpoint: Endpoint, text: str) -> str:
    """One call with the standard library."""
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
    asked = urllib.request.Request(f"{endpoint.base_url}/chat/completions", json.dumps(body).encode())
    asked.add_header("x-api-key", endpoint.key)
    with urllib.request.urlopen(asked) as answer:
        found: str = json.load(answer)["choices"][0]["message"]["content"]
    return found


@agent
def greeter(task: Task, endpoint: Endpoint) -> object:
    """Says what the policy says."""
    assert "answer" not in task.data
    return call(endpoint, str(task.data["prompt"]))


def is_running(pid: Path) -> bool:
    """Whether the process whose number stands in a file still runs; one that waits to be reaped does not."""
    stat = Path(f"/proc/{pid.read_text()}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def says_hello(task: Task, ran: Ran) -> bool:
    """Whether the agent's last word is the answer."""
    return task.data["answer"] in (ran.value, ran.output.strip())


async def run(
    gateway: Gateway,
    attempted: Function | Command,
    verify: Callable[[Task, Ran], Verdict | bool | float] = says_hello,
    **more: float,
) -> Trajectory:
    """One place in the run."""
    async with serving(gateway) as url:
        outside = Outside(gateway=gateway, url=url, agent=attempted, verify=verify, **more)  # type: ignore[arg-type]
        return (await outside.run([(KEY, TASK)]))[0]


async def test_a_function_becomes_a_record_with_the_verifiers_verdict(serve: Serve, turns: Turns) -> None:
    record = await run(serve(turns("hello")), greeter)
    assert (record.reward, record.outcome.reason, record.turns[0].text) == (1.0, StopReason.NATURAL_END, "hello")
    assert record.environment.id == "function:greeter"


async def test_of_a_class_every_attempt_gets_an_instance_of_its_own(serve: Serve, turns: Turns) -> None:
    class Counting:
        def __init__(self) -> None:
            self.count = 0

        async def __call__(self, task: Task, endpoint: Endpoint) -> str:
            self.count += 1
            return f"{await asyncio.to_thread(call, endpoint, 'x')}{self.count}"

    gateway = serve(turns("hello"))
    async with serving(gateway) as url:
        counted = agent(Counting)
        outside = Outside(gateway=gateway, url=url, agent=counted, verify=lambda task, ran: ran.text == "hello1")
        records = await outside.run([(replace(KEY, member=at), TASK) for at in range(3)])
    assert [record.reward for record in records] == [1.0] * 3


async def test_a_program_gets_its_task_and_its_endpoint_and_no_other_secret(
    serve: Serve, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIFU_GATEWAY_ADMIN_KEY", "sk-admin")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-vendor")
    record = await run(serve(turns("hello")), Command(arguments=(sys.executable, "-c", PROGRAM, "{task}")))
    assert record.reward == 1.0
    spans = record.tapes[0].spans
    assert [len(span) > 0 for span in spans] == [True] * len(spans)
    assert record.turns[0].text == "hello"


async def test_what_is_put_into_an_argument_is_not_filled_again(tmp_path: Path, serve: Serve, turns: Turns) -> None:
    seen = tmp_path / "seen"
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    await run(serve(turns("x")), Command(arguments=(sys.executable, "-c", program, str(seen), "{task}|{model}")))
    assert seen.read_text() == "say {model}|kifu"


@pytest.mark.parametrize(
    "error", [ValueError("lost"), StopIteration("lost"), SystemExit("lost"), KeyboardInterrupt("lost")]
)
async def test_failures_are_typed_and_carry_no_reward(serve: Serve, turns: Turns, error: BaseException) -> None:
    """What ends a program must not end the run whose thread it is raised on."""

    def breaks(task: Task, endpoint: Endpoint) -> object:
        raise error

    broken = await run(serve(turns("x")), agent(breaks))
    assert (broken.outcome.reason, broken.reward) == (StopReason.AGENT_ERROR, None)
    assert f"{type(error).__name__}: lost" in broken.outcome.detail


async def test_many_functions_that_block_wait_for_each_other_and_for_no_thread(serve: Serve, turns: Turns) -> None:
    """Forty attempts meet half way: with threads that others need, or too few of them, nobody would pass."""
    meeting = threading.Barrier(40)

    def patient(task: Task, endpoint: Endpoint) -> str:
        meeting.wait(timeout=20)
        return call(endpoint, "x")

    gateway = serve(turns("hello"))
    async with serving(gateway) as url:
        outside = Outside(gateway=gateway, url=url, agent=agent(patient), verify=says_hello, at_once=40)
        records = await outside.run([(replace(KEY, member=at), TASK) for at in range(40)])
    assert [record.reward for record in records] == [1.0] * 40


@pytest.mark.parametrize(
    ("arguments", "reason", "detail"),
    [
        (
            (sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"),
            "agent_error",
            "status 3: why",
        ),
        (("/no/such/program",), "agent_error", "No such file"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "time_limit", "1.0 s"),
    ],
)
async def test_a_program_that_fails_or_hangs_is_an_outcome(
    serve: Serve, turns: Turns, arguments: tuple[str, ...], reason: str, detail: str
) -> None:
    began = time.monotonic()
    record = await run(serve(turns("x")), Command(arguments=arguments), timeout_s=1.0)
    assert (record.outcome.reason.value, record.reward) == (reason, None)
    assert detail in record.outcome.detail
    assert time.monotonic() - began < 30


async def test_what_a_program_started_ends_with_it(tmp_path: Path, serve: Serve, turns: Turns) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time, pathlib; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    await run(serve(turns("x")), Command(arguments=(sys.executable, "-c", program)), timeout_s=5.0)
    assert not is_running(pid)


async def test_a_verifier_that_breaks_is_an_infrastructure_error_and_the_attempt_is_made_again(
    serve: Serve, turns: Turns
) -> None:
    tries: list[str] = []

    def judge(task: Task, ran: Ran) -> float:
        tries.append(str(ran.value))
        if len(tries) == 1:
            raise ValueError("no file")
        return 0.5

    gateway = serve(turns("one", "two"))
    record = await run(gateway, greeter, judge, attempts=3)
    assert tries == ["one", "two"]
    assert (record.key.attempt, record.reward) == (1, 0.5)
    first = next(item for item in gateway._store.pending if item.key.attempt == 0)
    assert (first.outcome.reason, first.reward) == (StopReason.VERIFIER_ERROR, None)


async def test_a_function_whose_time_is_over_can_call_no_more(serve: Serve, turns: Turns) -> None:
    late: list[int] = []
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    @agent
    def slow(task: Task, endpoint: Endpoint) -> object:
        time.sleep(0.6)
        try:
            call(endpoint, "late")
        except urllib.error.HTTPError as error:
            late.append(error.code)
            error.close()
        loop.call_soon_threadsafe(over.set)
        return None

    gateway = serve(turns("x"))
    async with serving(gateway) as url:
        outside = Outside(gateway=gateway, url=url, agent=slow, verify=says_hello, timeout_s=0.2)
        record = await outside.attempt(KEY, TASK)
        await asyncio.wait_for(over.wait(), 20)
    assert (record.outcome.reason, late) == (StopReason.TIME_LIMIT, [410])
    assert gateway.metrics()["late"] == 1


def test_a_command_without_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match="name of a program"):
        Command(arguments=())
