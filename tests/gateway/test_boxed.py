"""Outside agents in a sandbox: they reach their gateway and nothing else, and end when their attempt does."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kifu.envs import Task
from kifu.errors import UsageError
from kifu.gateway import BoxedCommand, Command, Gateway, Outside
from kifu.gateway.boxed import CONNECTIONS, Way
from kifu.gateway.reach import pump
from kifu.gateway.serve import serving
from kifu.policy import ScriptedSampler
from kifu.records import Origin, RolloutKey, StopReason, Trajectory, rebuild_check
from kifu.sandbox import Limits, Tree

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
    began = time.monotonic()
    record = await attempted(serve(turns("two")), boxed("import time; time.sleep(300)"), timeout_s=2.0)
    await asyncio.get_running_loop().shutdown_default_executor()

    assert record.outcome.reason is StopReason.TIME_LIMIT
    assert time.monotonic() - began < 60
    assert threading.active_count() <= before + 1


def test_an_unknown_back_end_is_named() -> None:
    with pytest.raises(UsageError, match="no sandbox back-end `nss`; did you mean `ns`"):
        boxed(ASKS, backends=("nss",))


def test_a_program_is_named_by_its_path_in_the_box() -> None:
    with pytest.raises(UsageError, match=r"found \['python3'\], expected the program's absolute path in the box"):
        BoxedCommand(arguments=("python3", "agent.py"))


@contextmanager
def echoing() -> Iterator[int]:
    """A service that says what it is told, on as many connections as come."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def echo(near: socket.socket) -> None:
            with near:
                pump(near, near)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    near, _ = server.accept()
                    threading.Thread(target=echo, args=(near,), daemon=True).start()
                    del near  # the thread's alone, so that it is gone when its peer is

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def sent(way: Way) -> socket.socket:
    """One end of a pair whose other end went through the way."""
    here, there = socket.socketpair()
    with there:
        socket.send_fds(way.theirs, [b"c"], [there.fileno()])
    here.settimeout(10)
    return here


def test_what_is_no_stream_socket_is_closed_and_the_way_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with echoing() as port, (tmp_path / "file").open() as file:
        before = len(list(Path("/proc/self/fd").iterdir()))
        way = Way("127.0.0.1", port)
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        network = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for handle in (file.fileno(), datagrams.fileno(), network.fileno()):
            socket.send_fds(way.theirs, [b"c"], [handle])
        way.theirs.sendall(b"no descriptor at all")
        socket.send_fds(way.theirs, [b"c"], [file.fileno()] * 20)
        with sent(way) as here:
            here.sendall(b"hello")
            assert here.recv(5) == b"hello"
        for mine in (datagrams, network):
            mine.close()
        way.close()
        way.theirs.close()
        wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)


def test_connections_are_counted_and_end_with_the_way() -> None:
    """The other side keeps its ends open and reads nothing."""
    with echoing() as port:
        way = Way("127.0.0.1", port)
        kept = [sent(way) for _ in range(CONNECTIONS + 3)]
        for here in kept[:CONNECTIONS]:
            here.sendall(b"x")
            assert here.recv(1) == b"x"
        assert [here.recv(1) for here in kept[CONNECTIONS:]] == [b"", b"", b""]
        way.close()
        assert {here.recv(1) for here in kept} == {b""}
        for here in (*kept, way.theirs):
            here.close()


def test_one_who_takes_back_what_it_sent_stops_nobody_else() -> None:
    """A copy of the sent end reads the data away and lets it block, which the threads of that connection alone feel."""
    with echoing() as port:
        way = Way("127.0.0.1", port)
        here, there = socket.socketpair()
        socket.send_fds(way.theirs, [b"c"], [there.fileno()])
        there.setblocking(True)
        here.sendall(b"mine")
        there.recv(4)
        with sent(way) as other:
            other.sendall(b"hello")
            assert other.recv(5) == b"hello"
        way.close()
        for mine in (here, there, way.theirs):
            mine.close()


def wait_for(holds: Callable[[], bool], *, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
