"""A file system that runs full loses nothing that was accepted, and the run goes on when there is space."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("disk_full_child.py")


def test_a_full_disk_under_every_kind_of_file_leaves_the_run_intact(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=1m tmpfs {shlex.quote(str(tmp_path))} && "
        f"exec {shlex.quote(sys.executable)} {shlex.quote(str(CHILD))} {shlex.quote(str(tmp_path))}"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    for kind in ("log", "log while sealing", "part while sealing", "manifest while sealing", "weights", "blob", "plan"):
        assert "no space left while writing" in found[kind], kind
        assert str(tmp_path) in found[kind]
    assert found["pending"] == ["train/s0/t00000/g0000/m000/a0"]
    assert found["sealed"] == 2
    assert found["left over"] == ["manifest.jsonl", "part-00000.parquet"]
    assert found["records"] == ["m000/a0", "m001/a0"]
    assert found["steps"] == [0, 1]
    assert found["versions"] is True
