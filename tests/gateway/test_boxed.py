"""Outside agents in a sandbox: they reach their gateway and nothing else, and end when their attempt does."""

import asyncio
import errno
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kifu.envs import Task
from kifu.errors import SandboxFailure, UsageError
from kifu.gateway import BoxedCommand, Command, Endpoint, Gateway, Outside
from kifu.gateway.boxed import LONGEST, Way
from kifu.gateway.reach import CONNECTIONS, END, HEAD, MOST, OPEN, PIECE, RESET, ends_of
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import Origin, RolloutKey, StopReason, Trajectory, rebuild_check
from kifu.sandbox import Limits, Mount, Tree

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
PYTHON = "/usr/bin/python3"
ASKS = """
import json, os, urllib.request
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "How much?"}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps(body).encode(),
    headers={"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
)
with urllib.request.urlopen(asked, timeout=20) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""
LOOKS = """
import json, os, socket, sys
def reached(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True
seen = [name for name, value in os.environ.items() if "of-the-host" in value]
print(json.dumps({"reached": reached(int(sys.argv[1])), "seen": seen, "secret": os.path.exists(sys.argv[2])}))
"""

Serve = Callable[..., Gateway]
Turns = Callable[..., ScriptedSampler]
Masked = Callable[..., list[tuple[Origin, str]]]


async def attempted(gateway: Gateway, agent: BoxedCommand | Command, *, timeout_s: float = 60.0) -> Trajectory:
    async with serving(gateway) as url:
        outside = Outside(
            gateway=gateway, url=url, agent=agent, verify=lambda _, ran: ran.text == "two", timeout_s=timeout_s
        )
        [record] = await outside.run([(KEY, Task(id="t", family="f", split="train", seed=0, data={"prompt": "p"}))])
    return record


def boxed(program: str, *arguments: str, **more: object) -> BoxedCommand:
    files = Tree.of({"agent.py": program})
    return BoxedCommand(arguments=(PYTHON, "agent.py", *arguments), files=files, **more)  # type: ignore[arg-type]


def answer_of(record: Trajectory) -> dict[str, str]:
    [event] = [event for event in record.turns[-1].events if event.kind == "agent.answered"]
    return dict(event.detail)  # type: ignore[arg-type]


async def test_a_program_in_a_box_is_recorded_like_any_other(serve: Serve, turns: Turns, masked: Masked) -> None:
    record = await attempted(serve(turns("two")), boxed(ASKS))

    assert record.verdict is not None
    assert record.verdict.success is True
    assert answer_of(record) == {"text": "two", "sandbox": "ns"}
    assert [text for origin, text in masked(record, 0) if origin is Origin.POLICY] == ["two<|im_end|>"]
    assert rebuild_check(record) == []
    assert record.environment.id == "boxed:python3"


@contextmanager
def listening() -> Iterator[int]:
    """A service of the host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("in_a_box", [True, False])
async def test_a_box_reaches_no_other_service_no_variable_and_no_file(
    serve: Serve, turns: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_box: bool
) -> None:
    """The control: the same program outside of a box reaches all three."""
    monkeypatch.setenv("SECRET", "of-the-host")
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    outside_file = tmp_path / "agent.py"
    asks = ASKS.replace("print(", "str(")
    outside_file.write_text(asks + LOOKS)
    with listening() as port:
        where = (str(port), str(secret))
        agent = boxed(asks + LOOKS, *where) if in_a_box else Command(arguments=(PYTHON, str(outside_file), *where))
        record = await attempted(serve(turns("two")), agent)

    found = json.loads(answer_of(record)["text"])
    assert found == {"reached": not in_a_box, "seen": [] if in_a_box else ["SECRET"], "secret": not in_a_box}


async def test_a_program_that_fails_is_an_error_of_the_agent_with_its_last_words(serve: Serve, turns: Turns) -> None:
    record = await attempted(serve(turns("two")), boxed("import sys; sys.exit('I give up')"))

    assert record.outcome.reason is StopReason.AGENT_ERROR
    assert record.outcome.detail == "boxed:python3 ended with status 1: I give up"
    assert record.reward is None


async def test_a_box_that_nobody_can_make_is_an_error_of_the_sandbox(serve: Serve, turns: Turns) -> None:
    record = await attempted(serve(turns("two")), boxed(ASKS, backends=()))

    assert (record.outcome.reason, record.reward) == (StopReason.SANDBOX_ERROR, None)
    assert "The list of back-ends is empty" in record.outcome.detail


async def test_a_program_over_its_limits_says_which(serve: Serve, turns: Turns) -> None:
    record = await attempted(serve(turns("two")), boxed("while True: pass", limits=Limits(wall_s=1.0)))

    assert (record.outcome.reason, record.outcome.detail) == (
        StopReason.AGENT_ERROR,
        "boxed:python3 ended with timeout: it said nothing",
    )


async def test_a_program_ends_with_its_attempt(serve: Serve, turns: Turns) -> None:
    """The box allows ten minutes, the attempt two seconds; the thread of the call is over soon after."""
    before = threading.active_count()
    record = await attempted(serve(turns("two")), boxed("import time; time.sleep(300)"), timeout_s=2.0)

    assert record.outcome.reason is StopReason.TIME_LIMIT
    await until(lambda: threading.active_count() <= before)


async def test_a_prompt_that_no_program_can_be_given_is_an_outcome(serve: Serve, turns: Turns) -> None:
    agent = boxed(ASKS, "{task}")
    gateway = serve(turns("two"))
    async with serving(gateway) as url:
        outside = Outside(gateway=gateway, url=url, agent=agent, verify=lambda _, ran: True)
        [record] = await outside.run([(KEY, Task(id="t", family="f", split="train", seed=0, data={"prompt": "a\0b"}))])

    assert (record.outcome.reason, record.reward) == (StopReason.SANDBOX_ERROR, None)
    assert "null character" in record.outcome.detail


def test_a_file_under_the_name_of_the_starter_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\.kifu-reach\.py is the name of the way"):
        BoxedCommand(arguments=(PYTHON, "agent.py"), files=Tree.of({".kifu-reach.py/x": "x"}))


async def test_a_prompt_longer_than_a_program_can_be_given_says_so(serve: Serve, turns: Turns) -> None:
    task = Task(id="t", family="f", split="train", seed=0, data={"prompt": "a" * LONGEST})
    gateway = serve(turns("two"))
    async with serving(gateway) as url:
        outside = Outside(gateway=gateway, url=url, agent=boxed(ASKS), verify=lambda _, ran: True)
        [record] = await outside.run([(KEY, task)])

    assert (record.outcome.reason, record.reward) == (StopReason.SANDBOX_ERROR, None)
    assert f"the task t makes {LONGEST + 36:,} bytes" in record.outcome.detail
    assert f"can be given {LONGEST - 1:,} at most" in record.outcome.detail


async def test_why_a_box_cannot_start_is_in_the_outcome(serve: Serve, turns: Turns) -> None:
    record = await attempted(serve(turns("two")), boxed(ASKS, python="/usr/bin/python9"))

    assert (record.outcome.reason, record.reward) == (StopReason.SANDBOX_ERROR, None)
    assert "could not start it: FileNotFoundError" in record.outcome.detail
    assert "/usr/bin/python9" in record.outcome.detail


def test_a_folder_is_no_program() -> None:
    with pytest.raises(UsageError, match="the box has no program /usr/lib; show its folder"):
        BoxedCommand(arguments=("/usr/lib",)).check()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"environment": {"A=B": "c"}}, "a variable is named 'A=B', expected a name without `=`"),
        ({"environment": {"": "c"}}, "a variable is named ''"),
        ({"environment": {"A": "b\0"}}, "null character"),
        ({"environment": {"A": "\ud800"}}, "half a character"),
        ({"mounts": (Mount(source="/srv", target="/opt/x"), Mount(source="/var", target="/opt/x"))}, "would hide /srv"),
    ],
)
def test_what_no_box_can_be_given_is_refused_when_it_is_written(more: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        boxed(ASKS, **more)


def test_an_unknown_back_end_is_named() -> None:
    with pytest.raises(UsageError, match="no sandbox back-end `nss`; did you mean `ns`"):
        boxed(ASKS, backends=("nss",))


def test_a_program_is_named_by_its_path_in_the_box() -> None:
    with pytest.raises(UsageError, match=r"found \['python3'\], expected the program's absolute path in the box"):
        BoxedCommand(arguments=("python3", "agent.py"))


MANY = """
import threading
found = []
asking = [threading.Thread(target=lambda: found.append(ask())) for _ in range(40)]
for one in asking:
    one.start()
for one in asking:
    one.join()
print(*found)
"""


async def test_forty_calls_at_once_are_all_answered(serve: Serve, turns: Turns) -> None:
    """More than are carried at once: the others wait."""
    ask = "def ask():" + ASKS.replace("print(", "return (").replace("\n", "\n    ")
    record = await attempted(serve(turns("two")), boxed(f"{ask}\n{MANY}"))

    assert answer_of(record)["text"].split() == ["two"] * 40
    assert len(record.turns) == 40


async def test_of_what_a_program_says_the_end_is_its_answer(serve: Serve, turns: Turns) -> None:
    """As for a program that runs without a box."""
    says = ASKS.replace(
        "    print(", "    print('x' * 2_000_000, file=sys.stderr)\n    print('x' * 100_000)\n    print("
    )
    record = await attempted(serve(turns("two")), boxed("import sys" + says))

    assert answer_of(record)["text"].endswith("x\ntwo")


async def test_a_program_that_stops_its_starter_ends_with_its_attempt_too(serve: Serve, turns: Turns) -> None:
    before = threading.active_count()
    stops = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(300)"
    record = await attempted(serve(turns("two")), boxed(stops), timeout_s=2.0)

    assert record.outcome.reason is StopReason.TIME_LIMIT
    await until(lambda: threading.active_count() <= before)


async def test_a_gateway_that_is_gone_is_an_error_of_the_sandbox(serve: Serve, turns: Turns) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/r/x/v1", key="k", model="m")
    catches = "try:" + ASKS.replace("\n", "\n    ") + "\nexcept OSError:\n    print('I could not ask')\n"
    with pytest.raises(SandboxFailure, match="boxed:python3: 1 of its connections did not reach the gateway"):
        await boxed(catches).run(Task(id="t", family="f", split="train", seed=0, data={}), endpoint)


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """A service that says what it is told, on as many connections as come."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@dataclass
class Counted:
    """Connections of a service."""

    now: int = 0
    most: int = 0
    total: int = 0


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[int, Counted]]:
    """A service that says nothing."""
    counted = Counted()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted.now, counted.total = counted.now + 1, counted.total + 1
        counted.most = max(counted.most, counted.now)
        with suppress(OSError):
            await reader.read()
        counted.now -= 1
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], counted
    server.close()


@asynccontextmanager
async def within(port: int) -> AsyncIterator[tuple[Way, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The box's side of a way, in the hands of somebody who keeps to no rule."""
    way = Way("127.0.0.1", port)
    async with way.open() as link:
        (reader, writer), close = await ends_of(link.read, link.write)
        yield way, reader, writer
        close()
        os.close(link.stop)


async def said(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    number, length = HEAD.unpack(await asyncio.wait_for(reader.readexactly(HEAD.size), 10))
    return number, length, await reader.readexactly(length) if length < OPEN else b""


async def test_connections_are_carried_apart_and_what_is_too_many_is_reset() -> None:
    async with echoing() as port, within(port) as (_, reader, writer):
        for number in range(1, MOST + 4):
            writer.write(HEAD.pack(number, OPEN) + HEAD.pack(number, 3) + b"%03d" % number)
        found = [await said(reader) for _ in range(CONNECTIONS + 3)]
        for number in range(1, MOST + 1):
            writer.write(HEAD.pack(number, END))
        found += [await said(reader) for _ in range(2 * MOST - CONNECTIONS)]

    assert [(number, data) for number, length, data in sorted(found) if length == 3] == [
        (number, b"%03d" % number) for number in range(1, MOST + 1)
    ]
    assert [number for number, length, _ in sorted(found) if length == END] == list(range(1, MOST + 1))
    assert [number for number, length, _ in sorted(found) if length == RESET] == [MOST + 1, MOST + 2, MOST + 3]


async def test_a_box_that_holds_its_connections_costs_the_gateway_a_few() -> None:
    """What it begins beyond them waits until one of them ends."""
    async with counting() as (port, counted), within(port) as (_, reader, writer):
        for number in range(1, MOST + 1):
            writer.write(HEAD.pack(number, OPEN))
        for ended in range(1, MOST + 1):
            writer.write(HEAD.pack(ended, END))
            assert await said(reader) == (ended, END, b"")

    assert (counted.most, counted.total) == (CONNECTIONS, MOST)


@pytest.mark.parametrize("succeed", [0, 1, 2])
async def test_a_way_that_descriptors_do_not_suffice_for_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, succeed: int
) -> None:
    before = descriptors()
    pipe, made = os.pipe, list[tuple[int, int]]()

    def scarce() -> tuple[int, int]:
        if len(made) == succeed:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(pipe())
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", scarce)
        with pytest.raises(OSError, match="Too many open files"):
            async with Way("127.0.0.1", 1).open():
                pass
    assert len(made) == succeed
    assert descriptors() == before


async def test_a_late_frame_begins_no_connection_and_an_end_is_answered_by_one() -> None:
    async with echoing() as port, within(port) as (_, reader, writer):
        writer.write(HEAD.pack(5, OPEN) + HEAD.pack(5, 1) + b"a" + HEAD.pack(5, END))
        assert [await said(reader), await said(reader)] == [(5, 1, b"a"), (5, END, b"")]
        for number, length in ((5, OPEN), (5, 1), (3, OPEN), (3, 1), (7, 1), (6, OPEN), (6, 1)):
            writer.write(HEAD.pack(number, length) + b"b" * (length == 1))
        assert await said(reader) == (6, 1, b"b")


async def test_what_is_no_frame_ends_the_way_and_everything_that_went_through_it() -> None:
    before = descriptors()
    async with echoing() as port, within(port) as (_, reader, writer):
        writer.write(HEAD.pack(1, OPEN) + HEAD.pack(1, 1) + b"a")
        assert await said(reader) == (1, 1, b"a")
        writer.write(HEAD.pack(1, PIECE + 1))
        with pytest.raises(asyncio.IncompleteReadError):
            await said(reader)
    await until(lambda: descriptors() <= before)


async def test_a_flood_of_small_frames_leaves_the_loop_to_others() -> None:
    """One byte a frame, answers never read: another box is served as often as the flooding one writes."""
    async with echoing() as port, within(port) as (_, _, flooding), within(port) as (_, reader, writer):
        flood = b"".join(HEAD.pack(at + 1, OPEN) for at in range(30))
        flood += b"".join(HEAD.pack(at % 30 + 1, 1) + b"x" for at in range(20_000))
        writer.write(HEAD.pack(1, OPEN))
        for _ in range(40):
            flooding.write(flood)
            writer.write(HEAD.pack(1, 1) + b"y")
            assert await said(reader) == (1, 1, b"y")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(holds: Callable[[], bool], *, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
