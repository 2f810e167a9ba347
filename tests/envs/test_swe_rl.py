"""Change records are answered by edits and paid by likeness; records of a file are read strictly."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kifu.envs import Environment, Task, resolve_environment
from kifu.envs.suites.swe_rl import PatchAnswer, changes
from kifu.errors import UsageError
from kifu.testing import check_env

SOURCE = "def clamp(x, low, high):\n    if x < low:\n        return low\n    return high if x > high else x\n"
OTHER = "def middle(a, b, c):\n    return sorted([a, b, c])[1]\n"


class Planted(PatchAnswer):
    """Defects in two functions of the test's own."""

    packages: ClassVar[tuple[str, ...]] = ("own",)

    @classmethod
    def functions(cls, package: str) -> Mapping[str, str]:
        return {"own/clamp.py": SOURCE, "own/middle.py": OTHER}


def record(at: int, **fields: object) -> dict[str, Any]:
    """A change record: one number is wrong."""
    before = f"def f(x):\n    # step {at}\n    return x + {at + 1}\n"
    after = before.replace(f"x + {at + 1}", f"x + {at}")
    return {"id": f"r{at}", "problem": f"f adds {at}", "files": {"f.py": before}, "oracle": {"f.py": after}, **fields}


def write(folder: Path, rows: list[Any]) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reward(environment: type[Environment], task: Task, answer: str) -> float | None:
    world = environment()
    world.reset(task, 0)
    world.answered(answer)
    return world.verify().reward


def test_planted_records_keep_the_contract_and_are_reproduced() -> None:
    first, again = ([*islice(Planted.tasks("train", 3), 4)] for _ in range(2))
    assert first == again
    assert len({task.id for task in first}) == 4
    check_env(Planted, first[:2], resets=20)


def test_silence_and_what_is_out_of_form_is_minus_one_and_a_near_patch_is_paid_between(tmp_path: Path) -> None:
    found = changes(write(tmp_path, [record(3)]))
    (task,) = found.tasks("train", 0)
    gold = str(found.demonstrate(task)[0])
    near = str(found.demonstrate(task, noise=1.0)[0])
    assert reward(found, task, gold) == 1.0
    assert reward(found, task, "x + 3, of course") == -1.0
    assert 0.0 < (reward(found, task, near) or 0.0) < 1.0
    world = found()
    shown = world.reset(task, 0)
    assert world.verify().reward == -1.0
    assert getattr(shown, "text", "").startswith("f adds 3\n\n### f.py\ndef f(x):")


def test_a_record_may_hold_a_patch_instead_of_the_files_after_it(tmp_path: Path) -> None:
    row = record(1)
    patch = "--- a/f.py\n+++ b/f.py\n@@ -1,3 +1,3 @@\n def f(x):\n     # step 1\n-    return x + 2\n+    return x + 1\n"
    oracle = row.pop("oracle")
    (task,) = changes(write(tmp_path, [{**row, "patch": patch}])).tasks("train", 0)
    assert task.data["oracle"] == oracle


def test_splits_are_the_lines_own_and_each_is_given_once(tmp_path: Path) -> None:
    path = write(tmp_path, [record(at, split="held_out" if at > 2 else "train") for at in range(5)])
    found = resolve_environment(f"swe_rl@{path}")
    assert [task.id for task in found.tasks("train", 1)] == ["r1", "r2"]
    assert [task.id for task in found.tasks("held_out", 5_000_000)] == ["r3", "r4"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\na\n", "a\nb\nc\n"),
        ("x\nx\nx\n", "x\nx\nx\ny\n"),
        ("a\nb\n", "a\n"),
        ("", "new\n"),
        ("one", "two"),
    ],
)
def test_the_oracles_own_edits_earn_everything(tmp_path: Path, before: str, after: str) -> None:
    row = {"id": "r", "problem": "p", "files": {"m.py": before}, "oracle": {"m.py": after}}
    found = changes(write(tmp_path, [row]))
    (task,) = found.tasks("train", 0)
    assert reward(found, task, str(found.demonstrate(task)[0])) == 1.0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no change record"),
        ([[1]], "line 1: expected an object with texts `id` and `problem`"),
        ([record(0), record(0)], "two records are called 'r0'"),
        ([record(0, oracle={})], "expected texts"),
        ([record(0, files={"f.py": 3})], "expected texts"),
        ([record(0, oracle=None, patch="--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n")], "stays inside its tree"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, rows: list[Any], words: str) -> None:
    with pytest.raises(UsageError) as found:
        changes(write(tmp_path, rows))
    assert words in str(found.value)
