"""Real signals to this process: the first one asks, a second Ctrl-C does not wait for the answer."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from kifu.training.stopping import stoppable


def _send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def listening() -> Iterator[None]:
    """SIGHUP as a terminal leaves it; the suite itself may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_on_the_loop_and_interrupts_nothing(number: signal.Signals) -> None:
    asked: list[str] = []

    async def work() -> str:
        with stoppable(lambda: asked.append("stop"), asyncio.get_running_loop()):
            _send(number)
            await asyncio.sleep(0.01)
            return "done"

    assert asyncio.run(work()) == "done"
    assert asked == ["stop"]


def test_a_second_interrupt_reaches_code_that_blocks_the_loop() -> None:
    """A world whose async tool sleeps for an hour in the middle of the event loop."""
    began = time.monotonic()

    async def work() -> None:
        with stoppable(lambda: None, asyncio.get_running_loop()):
            for after_s in (0.05, 0.1):
                threading.Timer(after_s, _send, [signal.SIGINT]).start()
            time.sleep(3600)  # noqa: ASYNC251 (what the test is about)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())

    assert time.monotonic() - began < 60


def test_a_second_sigterm_still_only_asks() -> None:
    """A scheduler repeats itself; the checkpoint must be written all the same."""
    asked: list[str] = []

    async def work() -> None:
        with stoppable(lambda: asked.append("stop"), asyncio.get_running_loop()):
            _send(signal.SIGTERM)
            _send(signal.SIGTERM)
            await asyncio.sleep(0.01)

    asyncio.run(work())

    assert asked == ["stop", "stop"]


def test_the_handlers_that_were_there_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def work() -> None:
        with stoppable(lambda: None, asyncio.get_running_loop()):
            pass

    asyncio.run(work())

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_no_handler_is_touched() -> None:
    """A run started from a thread of somebody's program."""
    before, found = signal.getsignal(signal.SIGTERM), []

    async def work() -> None:
        with stoppable(lambda: None, asyncio.get_running_loop()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()

    assert found == [before]
