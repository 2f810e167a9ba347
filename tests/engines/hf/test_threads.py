"""Work on a thread of its own: what comes back, and how a process ends that is interrupted while it waits."""

import subprocess
import sys

import pytest

from kifu.engines.hf.threads import apart

INTERRUPTED = """
import os, signal, sys, threading
import torch
from kifu.engines.hf.threads import apart

begun, matrix = threading.Event(), torch.ones(500, 500)

def work():
    torch.set_num_threads(1)
    begun.set()
    for _ in range(200):
        (matrix @ matrix).sum().item()
    print("worked to its end", flush=True)

def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt).start()
try:
    apart(work)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


def test_what_it_gives_or_raises_comes_back() -> None:
    assert apart(lambda: 7) == 7
    with pytest.raises(KeyError, match="x"):
        apart(lambda: dict[str, int]()["x"])


def test_an_interrupt_ends_the_waiting_and_the_process_ends_after_the_work() -> None:
    """A thread that still computes when the interpreter goes away is ended inside of C++, which aborts the process."""
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=120
    )
    assert (found.stdout.splitlines(), found.returncode) == (["interrupted", "worked to its end"], 130), found.stderr
