"""Work that blocks for as long as an agent takes, on threads that nothing else waits for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def on_own_thread(call: Callable[[], Result], *, name: str) -> Result:
    """What a call gives, on a daemon thread of its own.

    The event loop's own threads are few, and the gateway needs them to answer the very agents that would hold them.
    Nobody can stop a thread: a cancelled caller leaves the call running, and what it gives is dropped.

    Args:
        call: raises whatever it likes; what is no `Exception` arrives as a RuntimeError.
        name: of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
        else:
            future.set_exception(error)

    def work() -> None:
        result: Result | None = None
        error: Exception | None = None
        try:
            result = call()
        except StopIteration as ended:  # which no future can hold
            error = RuntimeError(f"StopIteration: {ended}")
        except Exception as raised:  # whoever waits attributes it
            error = raised
        except BaseException as raised:  # SystemExit and the like would end the loop instead of the call
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with suppress(RuntimeError):  # the loop was closed; nobody is there to hear it
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
