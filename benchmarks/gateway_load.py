"""Agents at a gateway that kills itself between commit and answer, leave in the middle, ask again; records checked.

python benchmarks/gateway_load.py --sessions 2000 --at-once 200 --kills 8
"""

import argparse
import asyncio
import os
import resource
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from kifu.testing.capture_storm import storm


def main() -> None:
    """Run the storm; what it checks is in `storm`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load, begun = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found = asyncio.run(
            storm(Path(place), sessions=given.sessions, at_once=given.at_once, kills=given.kills, seed=given.seed)
        )
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name, value in asdict(found).items():
        print(f"{name:12} {value:>9,}")
    print("lost 0, doubled 0, in another agent's record 0, rollouts open 0")
    cpu = spent.ru_utime + spent.ru_stime
    print(
        f"{time.monotonic() - begun:.0f} s, {cpu:.0f} CPU-seconds of the gateway, load average {load:.1f} at the start"
    )


if __name__ == "__main__":
    main()
