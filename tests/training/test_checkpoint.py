"""Checkpoints come back bit for bit, or not at all."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.errors import AlteredError, FormatError
from kifu.training.checkpoint import Mark, list_checkpoints, load_checkpoint, save_checkpoint

HERE = Path(__file__).parent
MARK = Mark(
    step=3,
    version=2,
    weights_digest="w",
    manifest_head="m",
    plan_head="p",
    stalled=1,
    ledger={"step": 3, "opening": [0, 0], "started": [0, 0], "closed": {}, "closing": [0, 0], "times_used": {}},
)
STATE: dict[str, Any] = {
    "weights": {
        "bits/of bfloat16": np.array([[0x3F80, 0x7FC0], [0xFFFF, 0]], dtype=np.uint16),
        "a": np.array([1.5, -0.0, np.nan, np.inf], dtype=np.float32),
        "view": np.arange(12, dtype=np.float64).reshape(3, 4).T,
        "empty": np.zeros((0, 3), dtype=np.float32),
        "zero-d": np.array(7.25, dtype=np.float64),
    },
    "steps": {"a": 2**62 + 1, "b": -3},
    "version": np.int64(5),
    "none": None,
    "text": "ключ/棋譜",
    "flags": [True, False, None, 1.5, {"deep": [np.array([1], dtype=np.int64)]}],
    "nothing": {},
    "no list": [],
}


def equal(one: object, two: object) -> bool:
    """Same structure, dtypes, shapes and bits."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray)
            and (one.dtype, one.shape) == (two.dtype, two.shape)
            and one.tobytes() == two.tobytes()
        )
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(equal, one, two))
    return one == two and (type(one) is type(two) or isinstance(one, np.generic))


def test_a_state_of_every_kind_comes_back_bit_for_bit(tmp_path: Path) -> None:
    mark, state = load_checkpoint(save_checkpoint(tmp_path, MARK, STATE))

    assert mark == MARK
    assert equal(STATE, state)


def test_only_the_two_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        save_checkpoint(tmp_path, replace(MARK, step=step), {"step": step})

    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00010", "step-00011"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00010", "step-00011"]


def test_a_step_saved_again_replaces_the_old_state(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, MARK, {"x": 1})
    path = save_checkpoint(tmp_path, MARK, {"x": 2})

    assert load_checkpoint(path)[1] == {"x": 2}
    assert len(list_checkpoints(tmp_path)) == 1


def test_what_a_killed_writer_left_is_not_a_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, MARK, {"x": 1})
    (tmp_path / ".step-00004.tmp").mkdir()
    (tmp_path / ".step-00004.tmp" / "mark.json").write_text("{")
    (tmp_path / "step-00005").mkdir()

    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00003"]
    assert save_checkpoint(tmp_path, replace(MARK, step=4), {"x": 2}).name == "step-00004"


@pytest.mark.parametrize("file", ["mark.json", "state.safetensors"])
def test_a_changed_file_is_named(tmp_path: Path, file: str) -> None:
    path = save_checkpoint(tmp_path, MARK, STATE)
    (path / file).write_bytes((path / file).read_bytes()[:-9])

    with pytest.raises(AlteredError, match=r"step-00003: not a checkpoint"):
        load_checkpoint(path)


def test_one_flipped_bit_of_a_weight_is_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, MARK, STATE) / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))

    with pytest.raises(AlteredError, match="step-00003"):
        load_checkpoint(path.parent)


def test_a_newer_format_is_not_guessed_at(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, MARK, {})
    table = json.loads((path / "mark.json").read_text())
    (path / "mark.json").write_text(json.dumps({**table, "format": 99}))

    with pytest.raises(FormatError, match="checkpoint format 99"):
        load_checkpoint(path)


def test_a_full_disk_leaves_the_older_checkpoint_whole(tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, str(HERE / "full_disk_child.py")]

    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["error"] == "DiskFullError"
    assert "step-00002: cannot write the checkpoint" in told["message"]
    assert "kifu resume" in told["message"]
    assert told["left"] == ["step-00001"]
    assert told["state"] == {"x": 1}
