"""A plain call means the same in a script, in a thread and in a notebook, whose cells run inside an event loop."""

import asyncio
import os
import signal
import threading
import time

import pytest

from kifu.envs.calling.waiting import to_end


async def _name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def _raise() -> None:
    raise KeyError("x")


def test_without_a_loop_the_coroutine_runs_on_the_callers_thread() -> None:
    assert to_end(_name()) == threading.current_thread().name


def test_inside_a_running_loop_it_gets_one_of_its_own() -> None:
    async def cell() -> tuple[str, str]:
        return to_end(_name()), threading.current_thread().name

    inner, outer = asyncio.run(cell())

    assert inner != outer


@pytest.mark.parametrize("inside", [False, True])
def test_what_it_raises_is_raised(inside: bool) -> None:
    async def cell() -> None:
        to_end(_raise())

    with pytest.raises(KeyError, match="x") as raised:
        asyncio.run(cell()) if inside else to_end(_raise())
    assert raised.value.__context__ is None, "and nothing of how it was called stands in its traceback"


def _interrupt_soon() -> None:
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()


def test_an_interrupt_while_a_notebook_waits_asks_the_coroutine_to_stop() -> None:
    """And what the coroutine then says is the answer, e.g. that the run can be resumed."""
    began = time.monotonic()

    async def work(asked: asyncio.Event) -> str:
        await asked.wait()
        return "stopped"

    async def cell() -> str:
        asked = asyncio.Event()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a notebook's kernel
        _interrupt_soon()
        return to_end(work(asked), stop=asked.set)

    assert asyncio.run(cell()) == "stopped"
    assert time.monotonic() - began < 60


def test_without_a_way_to_ask_the_coroutine_is_cancelled() -> None:
    async def cell() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _interrupt_soon()
        to_end(asyncio.sleep(3600))

    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        asyncio.run(cell())
