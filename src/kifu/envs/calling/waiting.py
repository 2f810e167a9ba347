"""Plain functions that wait for a coroutine, also where an event loop runs already, as in a notebook."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Value = TypeVar("Value")


def to_end(work: Coroutine[Any, Any, Value], *, stop: Callable[[], None] | None = None) -> Value:
    """Run a coroutine to its end.

    Inside a running loop it gets a loop and a thread of its own, and the caller's loop waits, as for any plain call.

    Args:
        work: what to run.
        stop: called on the coroutine's loop when Ctrl-C interrupts that waiting; the coroutine is cancelled when None.
    """
    return _apart(work, stop) if _is_in_loop() else asyncio.run(work)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _apart(work: Coroutine[Any, Any, Value], stop: Callable[[], None] | None) -> Value:
    ends: list[Callable[[], object]] = []

    async def held() -> Value:
        inner = asyncio.ensure_future(work)
        ends.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stop or inner.cancel))
        return await inner

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kifu-loop") as pool:
        running = pool.submit(lambda: asyncio.run(held()))
        try:
            return running.result()
        except KeyboardInterrupt:
            for end in ends:
                end()
            return running.result()
