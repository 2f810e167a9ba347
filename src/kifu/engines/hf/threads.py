"""Work on a thread that ends with it.

OpenMP keeps a team of threads for every thread that ever computed. As soon as the teams together outnumber the cores,
idle members no longer wait awake between two parallel regions, and small ones cost a wake-up each: measured, a training
step takes a quarter longer beside one idle team. A thread that ends takes its team with it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def apart(work: Callable[[], Result]) -> Result:
    """Run ``work`` on a thread of its own and wait for it; what it raises is raised here."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as cause:  # handed over whatever it is
            future.set_exception(cause)

    thread = threading.Thread(target=run, name="kifu-hf-compute", daemon=True)
    thread.start()
    thread.join()
    return future.result()
