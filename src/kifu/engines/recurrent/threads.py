"""One thread for this engine's arithmetic: sums then have one order on every machine.

Torch splits even small matrix products by its number of threads, and the last bits differ. The models here are so small
that more threads only cost time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on the calling thread alone.

    Blocks of several threads may overlap: the number found by the first comes back when the last one ends, because part
    of torch's setting belongs to the process.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.set_num_threads(_before)
