"""`kifu audit` and `kifu replay`: silent on a true record, exact about a changed one."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from kifu.records import RunStore

Kifu = Callable[..., Result]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def first_part(run: Path) -> Path:
    return sorted((run / "records").glob("part-*.parquet"))[0]


def test_a_true_record_is_rebuilt_whole(kifu: Kifu, finished: Path) -> None:
    found = kifu("audit", finished, "--replay", "--json")
    assert found.exit_code == 0, found.stdout
    report = json.loads(found.stdout)
    # 3 steps of 4 prompts, one attempt each, and two evaluations of 6 tasks
    assert (report["records"], report["rebuilt"]) == (24, 24)
    assert report["not_rebuildable"] == []
    assert report["problems"] == []
    assert report["ledger_closed"] is True
    assert report["max_logprob_error"] <= 1e-4


def test_a_run_that_is_being_written_is_refused_and_named(kifu: Kifu, finished: Path) -> None:
    with RunStore(finished):
        found = kifu("audit", finished)
    assert found.exit_code == 4
    assert f"process {os.getpid()} is writing this run" in found.stderr
    assert kifu("audit", finished, "--no-scores").exit_code == 0


def test_without_scores_no_error_is_claimed(kifu: Kifu, finished: Path) -> None:
    report = json.loads(kifu("audit", finished, "--no-scores", "--json").stdout)
    assert report["max_logprob_error"] is None


def test_a_flipped_byte_is_named_with_its_part(kifu: Kifu, copied: Path) -> None:
    part = first_part(copied)
    flip(part, part.stat().st_size // 2)
    found = kifu("audit", copied, "--no-scores", "--json")
    assert found.exit_code == 1
    assert f"records/{part.name}" in {item["part"] for item in json.loads(found.stdout)["problems"]}


def test_a_dropped_part_is_named(kifu: Kifu, copied: Path) -> None:
    part = first_part(copied)
    part.unlink()
    found = kifu("audit", copied, "--no-scores")
    assert found.exit_code == 1
    assert f"records/{part.name}" in found.stdout


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_frozen_experiment_that_is_not_as_written_is_named(kifu: Kifu, copied: Path, damage: str) -> None:
    """Credit follows from the protocol, so a record with another one says something else."""
    path = copied / "protocol.toml"
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("gamma = 1.0", "gamma = 0.5").replace("kifu", "Kifu") + "\n# more\n")

    found = kifu("audit", copied, "--no-scores", "--json")
    gone_on = kifu("resume", copied)

    assert found.exit_code == 1
    assert [item["part"] for item in json.loads(found.stdout)["problems"]] == ["protocol.toml"]
    assert gone_on.exit_code == (0 if damage == "missing" else 4)
    assert kifu("audit", copied, "--no-scores").exit_code == (0 if damage == "missing" else 1)


@pytest.mark.parametrize("name", ["records/manifest.jsonl", "plan.jsonl", "weights/versions.jsonl"])
def test_a_cut_tail_is_named_with_its_file(kifu: Kifu, copied: Path, name: str) -> None:
    path = copied / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    found = kifu("audit", copied, "--no-scores", "--json")
    assert found.exit_code == 1
    assert name in {item["part"] for item in json.loads(found.stdout)["problems"]}


def test_altered_weights_are_named(kifu: Kifu, copied: Path) -> None:
    file = sorted((copied / "weights").glob("v*.zst"))[-1]
    flip(file, file.stat().st_size // 2)
    found = kifu("audit", copied, "--no-scores", "--json")
    assert found.exit_code == 1
    assert f"weights/{file.name}" in {item["part"] for item in json.loads(found.stdout)["problems"]}


def test_replay_finds_a_true_record_equal(kifu: Kifu, finished: Path) -> None:
    report = json.loads(kifu("replay", finished, "--json").stdout)
    assert (report["replayed"], report["equal"]) == (24, 24)
    assert report["differences"] == []


def test_replay_of_one_record_replays_one(kifu: Kifu, finished: Path) -> None:
    name = json.loads(kifu("show", finished, "--json").stdout)[0]["trajectory"]
    assert json.loads(kifu("replay", finished, name, "--json").stdout)["replayed"] == 1


def test_replay_names_what_a_changed_environment_does_differently(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "maze", "--folder", tmp_path).exit_code == 0
    run = tmp_path / "run"
    assert kifu("train", tmp_path / "maze.toml", "--profile", "check", "--out", run).exit_code == 0
    assert kifu("replay", run).exit_code == 0
    source = tmp_path / "maze.py"
    source.write_text(source.read_text().replace("return self.prize\n", 'return "nothing"\n'))
    sys.modules.pop("kifu_user_maze")

    found = kifu("replay", run, "--json")

    assert found.exit_code == 1
    whats = [line for item in json.loads(found.stdout)["differences"] for line in item["what"]]
    assert whats
    assert all("observation: recorded" in line and "now 'nothing'" in line for line in whats)


def test_an_unknown_record_says_how_to_list_them(kifu: Kifu, finished: Path) -> None:
    found = kifu("replay", finished, "train/s9/t0/g0/m0/a0")
    assert found.exit_code == 4
    assert "kifu show" in found.stderr


def test_a_checkpoint_without_its_mark_is_named_and_resume_goes_on_without_it(kifu: Kifu, copied: Path) -> None:
    """A checkpoint appears and disappears whole, so no crash leaves one like that."""
    last = sorted((copied / "checkpoints").glob("step-*"))[-1]
    (last / "mark.json").unlink()

    found = kifu("audit", copied, "--no-scores", "--json")

    assert found.exit_code == 1
    named = [item for item in json.loads(found.stdout)["problems"] if "no mark.json" in item["what"]]
    assert [item["part"] for item in named] == [f"checkpoints/{last.name}"]
    assert kifu("resume", copied).exit_code == 0
