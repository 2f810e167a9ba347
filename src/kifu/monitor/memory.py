"""How much memory the process has needed at most."""

import ctypes
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far, in bytes.

    Linux keeps the mark per address space (``VmHWM``); ``getrusage`` would also count what the parent held before the
    process started its own program, so it is only the fallback.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def release_free_memory() -> None:
    """Give freed heap pages back to the operating system, where the C library can (glibc).

    Phases that allocate in other sizes (sampling, training, checkpoints) otherwise add up their fragments.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
