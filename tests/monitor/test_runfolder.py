"""The run folder: paths, the format number, atomic replacement."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kifu.errors import AlteredError, FormatError, StorageError
from kifu.monitor import RUN_FORMAT, RunFolder, write_atomic, write_json


def test_a_new_run_has_the_documented_layout(tmp_path: Path) -> None:
    """Names as the design lists them."""
    folder = RunFolder.create(tmp_path / "run", {"name": "corridor", "seed": 1})

    assert {path.name for path in folder.root.iterdir()} == {
        "run.json",
        "records",
        "wal",
        "weights",
        "checkpoints",
        "blobs",
    }
    assert {
        path.relative_to(folder.root).as_posix()
        for path in (folder.protocol, folder.plan, folder.metrics, folder.report, folder.lock)
    } == {"protocol.toml", "plan.jsonl", "metrics.jsonl", "report.html", "lock"}
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    digest = hashlib.sha256(b'{"format":2,"name":"corridor","seed":1}').hexdigest()
    assert facts == {"format": 2, "name": "corridor", "seed": 1, "digest": digest}
    assert RunFolder.open(tmp_path / "run").facts()["seed"] == 1


def test_a_run_is_not_started_over_another_run_or_foreign_files(tmp_path: Path) -> None:
    """Nothing that exists is overwritten."""
    RunFolder.create(tmp_path / "run", {})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")

    with pytest.raises(StorageError, match="kifu resume"):
        RunFolder.create(tmp_path / "run", {})
    with pytest.raises(StorageError, match="not a run folder"):
        RunFolder.create(tmp_path / "home", {})


def test_an_empty_folder_with_a_held_lock_may_become_a_run(tmp_path: Path) -> None:
    """The lock is taken before the run is made."""
    (tmp_path / "lock").touch()

    assert RunFolder.create(tmp_path, {}).run_json.exists()


def test_opening_names_what_is_missing_newer_or_broken(tmp_path: Path) -> None:
    """Three kinds of failure, three types, each with advice."""
    with pytest.raises(StorageError, match=r"no run\.json"):
        RunFolder.open(tmp_path)

    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT + 1}))
    with pytest.raises(FormatError, match="Upgrade kifu"):
        RunFolder.open(tmp_path)

    (tmp_path / "run.json").write_text('{"format"')
    with pytest.raises(AlteredError, match="not JSON"):
        RunFolder.open(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_leftover(tmp_path: Path) -> None:
    """Neither a bad value nor a missing folder touches what is there."""
    path = tmp_path / "facts.json"
    write_json(path, {"old": 1})

    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"bad": float("nan")})
    with pytest.raises(StorageError, match="cannot write"):
        write_atomic(tmp_path / "missing" / "facts.json", b"x")

    assert json.loads(path.read_text()) == {"old": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["facts.json"]


_FULL_DISK = """
set -e
mount -t tmpfs -o size=64k tmpfs "$1"
exec "$2" - "$1" <<'PY'
import sys
from pathlib import Path
from kifu.errors import DiskFullError
from kifu.monitor import write_atomic
path = Path(sys.argv[1]) / "facts.json"
write_atomic(path, b"old")
try:
    write_atomic(path, b"x" * 200_000)
except DiskFullError as error:
    print(error)
print(path.read_bytes().decode(), [item.name for item in path.parent.iterdir()])
PY
"""


def test_a_full_disk_is_named_and_the_old_file_survives(tmp_path: Path) -> None:
    """A real full disk: a small tmpfs in a user and mount namespace."""
    done = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            _FULL_DISK,
            "sh",
            str(tmp_path),
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")

    assert done.returncode == 0, done.stderr
    message, state = done.stdout.splitlines()
    assert "no space left while writing facts.json" in message
    assert state == "old ['facts.json']"
