"""Peak memory against an allocation of known size."""

import subprocess
import sys

_CHILD = """
from kifu.monitor import peak_rss_bytes
before = peak_rss_bytes()
block = bytearray(b"x") * (64 * 2**20)
del block
print(before, peak_rss_bytes())
"""


def test_the_peak_holds_an_allocation_that_was_freed_again() -> None:
    """64 MiB are touched and freed; the mark must rise by about that much."""
    out = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())

    assert 60 * 2**20 < after - before < 90 * 2**20
