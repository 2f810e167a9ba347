"""`kifu envs mine`: a file of records that the environment reads, and why the other commits are none."""

import json
import subprocess
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import Result

from kifu.envs import resolve_environment


class Kifu(Protocol):
    def __call__(self, *arguments: object) -> Result: ...


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit of 2001 and two of 2017."""
    folder = tmp_path / "own"
    folder.mkdir()

    def git(*words: str, date: str = "") -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        env = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_COMMITTER_DATE": date}
        subprocess.run(["git", "-C", folder, *settings, *words], env=env, check=True)

    git("init", "-q")
    for at, seconds in enumerate((1_000_000_000, 1_500_000_000, 1_500_000_001)):
        (folder / "f.py").write_text(f"step = {at}\n")
        git("add", "f.py")
        git("commit", "-q", "-m", "Go by one step further than it went before.", date=f"{seconds} +0000")
    return folder


def test_records_are_written_and_the_other_commits_counted(kifu: Kifu, clone: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    found = json.loads(kifu("envs", "mine", clone, "--out", out, "--held-out-since", "2017-07-14", "--json").stdout)
    assert found["records"] == {"train": 0, "held_out": 2}
    assert (found["commits"], found["dropped"]) == (3, {"without a parent": 1})
    tasks = list(resolve_environment(f"swe_rl@{out}").tasks("held_out", 5_000_000))
    assert [(task.family, task.data["oracle"]) for task in tasks] == [
        ("own", {"f.py": "step = 1\n"}),
        ("own", {"f.py": "step = 2\n"}),
    ]
    again = kifu("envs", "mine", clone, "--out", out)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    told = kifu("envs", "mine", f"mine={clone}", "--out", tmp_path / "more.jsonl", "--held-out-repository", "own")
    assert "no repository 'own' among mine" in told.stderr
    said = kifu("envs", "mine", f"mine={clone}", "--out", tmp_path / "more.jsonl").stdout
    assert "left out: without a parent" in said
    assert said.endswith("more.jsonl\n")
