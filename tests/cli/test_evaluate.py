"""`kifu eval`: the shape others rely on, the numbers of the run itself, and a record left alone."""

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import kifu as library
from kifu.cli.evaluate import evaluate
from kifu.records.reader import RunReader

Kifu = Callable[..., Result]


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def test_the_document_has_the_promised_shape(kifu: Kifu, copied: Path) -> None:
    found = kifu("eval", copied, "--tasks", 4, "--tries", 2, "--decoding", "sampled", "--json")
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["run"] == str(copied)
    assert document["checkpoint"] == "3"
    assert document["split"] == "held_out"
    assert (document["tasks"], document["tries"]) == (4, 2)
    assert set(document["success"]) == {"mean", "low", "high"}
    assert set(document["by_family"]) == {"red", "blue"}
    assert document["turns"]["mean"] > 0
    assert document["errors"] == {}


@pytest.mark.parametrize(("checkpoint", "at"), [("first", 0), ("last", -1), ("0", 0)])
def test_a_kept_version_scores_what_the_run_measured_with_it(
    kifu: Kifu, copied: Path, checkpoint: str, at: int
) -> None:
    measured = json.loads((copied / "run.json").read_text())["evaluations"][at]
    again = json.loads(kifu("eval", copied, "--checkpoint", checkpoint, "--json").stdout)
    for name in ("checkpoint", "split", "tasks", "success", "turns", "stops"):
        assert again[name] == measured[name]


def test_the_runs_own_record_is_left_alone(kifu: Kifu, copied: Path) -> None:
    before = {name: digest(copied / name) for name in ("records", "weights", "checkpoints")}
    facts = (copied / "run.json").read_bytes()
    assert kifu("eval", copied, "--tasks", 2).exit_code == 0
    assert kifu("eval", copied, "--tasks", 2).exit_code == 0
    assert {name: digest(copied / name) for name in before} == before
    assert (copied / "run.json").read_bytes() == facts
    assert sorted(path.name for path in (copied / "evaluations").iterdir()) == ["0001", "0002"]
    assert kifu("audit", copied, "--no-scores").exit_code == 0


def test_nothing_is_written_when_nothing_is_to_be_kept(kifu: Kifu, copied: Path) -> None:
    assert kifu("eval", copied, "--tasks", 2, "--no-keep").exit_code == 0
    assert not (copied / "evaluations").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--split", "test"], 2, ["no split `test`", "train, held_out"]),
        (["--checkpoint", "9"], 4, ["version 9 is not kept", "from 0 to 3"]),
        (["--checkpoint", "best"], 2, ["'best'", "from 0 to 3", "first or last"]),
        (["--tasks", "0"], 2, ["--tasks"]),
    ],
)
def test_what_cannot_be_evaluated_is_explained(
    kifu: Kifu, finished: Path, arguments: list[str], code: int, says: list[str]
) -> None:
    found = kifu("eval", finished, "--no-keep", *arguments)
    assert found.exit_code == code, found.stderr
    assert [part for part in says if part not in found.stderr] == []


def test_a_folder_without_a_run_says_what_was_expected(kifu: Kifu, tmp_path: Path) -> None:
    found = kifu("eval", tmp_path)
    assert found.exit_code == 4
    assert "no run here" in found.stderr
    assert "kifu train" in found.stderr


def test_best_of_n_hands_out_what_the_judge_likes_and_reports_it_beside_one_attempt(
    kifu: Kifu, copied: Path, tmp_path: Path
) -> None:
    """Recomputed from the evaluation's own records."""
    (tmp_path / "judge.py").write_text("def short(candidate):\n    return -len(candidate.turns)\n")
    arguments = ("eval", copied, "--tasks", 4, "--best-of", 3, "--judge", f"{tmp_path}/judge.py:short")
    found = kifu(*arguments, "--json")
    assert found.exit_code == 0, found.stderr
    told = json.loads(found.stdout)

    tasks: dict[str, list[tuple[int, int, bool, str]]] = {}
    for record in RunReader(copied / "evaluations" / "0001").trajectories():
        assert record.verdict is not None
        won = record.verdict.success is True
        tasks.setdefault(record.task.id, []).append((len(record.turns), record.key.member, won, record.id))
    best = {task: min(found) for task, found in tasks.items()}
    assert {len(found) for found in tasks.values()} == {3}
    assert (told["tries"], told["best_of"]["n"], told["best_of"]["tasks"]) == (3, 3, 4)
    assert told["best_of"]["choices"] == {task: item[3] for task, item in best.items()}
    assert told["best_of"]["chosen"]["mean"] == pytest.approx(sum(item[2] for item in best.values()) / 4)
    every = [won for found in tasks.values() for _, _, won, _ in found]
    assert told["best_of"]["one"]["mean"] == pytest.approx(sum(every) / 12)
    assert told["best_of"]["pass@3"]["mean"] == sum(any(item[2] for item in found) for found in tasks.values()) / 4
    assert "best of 3 by" in kifu(*arguments, "--no-keep").stdout


def test_the_function_takes_what_the_command_takes_and_gives_the_same(kifu: Kifu, copied: Path, tmp_path: Path) -> None:
    command = set(inspect.signature(evaluate).parameters) - {"as_json"}
    assert set(inspect.signature(library.evaluate).parameters) == command

    (tmp_path / "judge.py").write_text("def short(candidate):\n    return -len(candidate.turns)\n")
    judge = f"{tmp_path}/judge.py:short"
    told = json.loads(
        kifu("eval", copied, "--tasks", 4, "--best-of", 3, "--judge", judge, "--no-keep", "--json").stdout
    )
    found = library.evaluate(copied, tasks=4, best_of=3, judge=judge, keep=False)
    assert json.loads(json.dumps(found.to_json()))["best_of"] == told["best_of"]
    assert list((copied / "evaluations").glob("*")) == []


def test_a_number_of_attempts_without_a_judge_is_refused(kifu: Kifu, finished: Path) -> None:
    found = kifu("eval", finished, "--best-of", 3, "--no-keep")
    assert found.exit_code == 2
    assert "`best_of` and `judge` go together" in found.stderr
