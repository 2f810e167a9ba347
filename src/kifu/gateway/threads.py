"""Work that blocks for as long as an agent takes, on threads that nothing else waits for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


async def on_own_thread(call: Callable[[], Result], *, name: str) -> Result:
    """What a call gives, on a daemon thread of its own.

    The event loop's own threads are few, and the gateway needs them to answer the very agents that would hold them.
    Nobody can stop a thread: a cancelled caller leaves the call running, and what it gives is dropped.

    Args:
        call: raises whatever it likes; what is no `Exception` arrives as a RuntimeError.
        name: of the thread.
    """
    found = await _started(call, name)
    error, result = found.pop(), found.pop()  # an error knows the thread's frames: they must not know it too
    if error is not None:
        try:
            raise error
        finally:
            del error
    return cast(Result, result)


def _started(call: Callable[[], Result], name: str) -> "asyncio.Future[list[Any]]":
    """What the call gives and what it raised, one of them None."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def deliver(found: list[Any]) -> None:
        if not future.done():
            future.set_result(found)

    def work() -> None:
        with suppress(RuntimeError):  # the loop was closed; nobody is there to hear it
            loop.call_soon_threadsafe(deliver, _outcome(call))

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _outcome(call: Callable[[], object]) -> list[Any]:
    try:
        return [call(), None]
    except StopIteration as ended:  # which no coroutine can raise
        return [None, RuntimeError(f"StopIteration: {ended}")]
    except Exception as raised:  # whoever waits attributes it
        return [None, raised]
    except BaseException as raised:  # SystemExit and the like would end the loop instead of the call
        return [None, RuntimeError(f"{type(raised).__name__}: {raised}")]
