"""A thousand episodes with random kills of boxes, fork servers and supervisors leave nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sandbox_chaos.py"


def test_a_thousand_episodes_with_random_kills_leave_nothing_and_give_no_wrong_result() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--episodes", "1000", "--seed", "0"], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert {name: what for name, what in report["left"].items() if what} == {}
    assert report["wrong"] == 0
    assert report["episodes"] >= 1000
    assert report["right"] > 800
    assert report["failed"] > 0
    assert report["killed_supervisors"] > 0
    assert report["killed_parts"] > 50
