"""Disks that are full or cannot be written, real ones: small file systems in a user and mount namespace."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
set -u
disk="$1"; run="$2"; file="$3"
kifu() { "$PY" -c 'import sys; from kifu.cli import app; app(sys.argv[1:])' "$@"; }
mount -t tmpfs -o size=24k tmpfs "$disk" || exit 77
kifu train "$file" --profile check --out "$disk/run" 2>&1 | tail -1
ls -A "$disk/run"
umount "$disk"
mount -t tmpfs -o ro tmpfs "$disk"
kifu train "$file" --profile check --out "$disk/run" 2>&1 | tail -1
umount "$disk"
mount -t tmpfs -o size=128k tmpfs "$disk"
head -c 120000 /dev/zero > "$disk/fill"
kifu export "$run" "$disk/out" --to atif 2>&1 | tail -1
ls -A "$disk/out"
kifu report "$run" --out "$disk/report.html" 2>&1 | tail -1
ls -A "$disk"
"""


def test_full_and_unwritable_disks_are_named_and_nothing_half_done_stays(finished: Path, tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]
    done = subprocess.run(
        [*command, str(disk), str(finished), str(finished.parent / "small.toml")],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PY": sys.executable,
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
        },
    )
    assert done.returncode == 0, f"a disk of its own needs user namespaces: {done.stderr.strip()}"

    begun, refused, exported, reported, *left = done.stdout.splitlines()
    assert "no space left to begin a run, and nothing of it was kept" in begun
    assert "a run cannot begin here: Read-only file system" in refused
    assert "no space left" in exported
    assert "no space left" in reported
    assert left == ["fill", "out"]  # the folder of the export is empty again
