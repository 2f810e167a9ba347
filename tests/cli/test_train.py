"""`kifu train`, `kifu resume` and `kifu check`: what they write, and what they say about bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from kifu.records import RunLock

Kifu = Callable[..., Result]


Write = Callable[..., Path]


def test_train_writes_the_run_folder(finished: Path) -> None:
    present = {path.name for path in finished.iterdir()}
    wanted = {"run.json", "protocol.toml", "records", "wal", "plan.jsonl", "metrics.jsonl", "weights", "checkpoints"}
    assert wanted <= present


def test_metrics_have_one_object_per_step(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all({"seconds", "cpu_seconds", "success", "ledger"} <= set(row) for row in rows)


def test_train_prints_one_json_document_and_names_the_default_folder(
    kifu: Kifu, experiment: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = kifu("train", experiment(), "--profile", "check", "--seed", 3, "--set", "update.steps=1", "--json")
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["run"] == "runs/experiment-seed3"
    assert document["steps"] == 1
    assert len(document["evaluations"]) == 2
    assert (tmp_path / "runs" / "experiment-seed3" / "run.json").is_file()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kifu = 1", "kifu = ", ["experiment.toml", "not TOML"]),
        ("kifu = 1", "kifu = 2", ["`kifu = 1`", "found 2"]),
        ("[update]", "[udpate]", ["unknown table [udpate]", "`update`"]),
        ("steps = 150", "stepz = 150", ["update.stepz", "unknown field", "`steps`"]),
        ("steps = 150", "steps = 'many'", ["update.steps", "found 'many'", "expected a whole number"]),
        ("steps = 150\n", "", ["update.steps", "missing"]),
        ('algorithm = "actor_critic"', 'algorithm = "rlo"', ["credit.algorithm: no algorithm `rlo`", "Known: "]),
        (
            "{ entropy_coefficient = 0.02 }",
            "{ entropy = 0.02 }",
            ["credit.options: algorithm `actor_critic` has no opt"],
        ),
        ('name = "key_door"', 'name = "key_dor"', ["no environment `key_dor`", "`key_door`"]),
        ('name = "key_door"', 'name = "nowhere.py:Safe"', ["no file nowhere.py"]),
        ('train = "seed 0.."', 'train = "seed 0..9_000_000"', ["environment.splits", "share seeds"]),
        ("seed 5_000_000..", "seeds 5", ["environment.splits.held_out", "'seeds 5'", "seed FIRST.."]),
        ("seed 5_000_000..", "seed 5..10", ["`held_out` holds 6 seeds", "ask for fewer"]),
        ('split = "held_out"', 'split = "test"', ["evaluation.split", "`test`", "held_out"]),
    ],
)
def test_a_bad_experiment_is_refused_before_anything_is_written(
    kifu: Kifu, experiment: Write, tmp_path: Path, old: str, new: str, says: list[str]
) -> None:
    path = experiment(old, new)
    found = kifu("train", path, "--out", tmp_path / "run")
    assert found.exit_code == 2, found.stderr
    assert [part for part in says if part not in found.stderr] == []
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["credit.algorithm=grpo", "credit.options={}"], "group_size must be at least 2"),
        (["credit.algorithm=sft", "credit.options={}"], "trains on demonstrations"),
        (["update"], "expected path.to.field=value"),
        (["update.steps=0"], "found 0, expected at least 1"),
    ],
)
def test_an_impossible_combination_is_explained(kifu: Kifu, experiment: Write, sets: list[str], says: str) -> None:
    # An override lays tables over tables, so the options of the other method stay unless the file drops them.
    path = experiment("options = { entropy_coefficient = 0.02 }\n", "")
    found = kifu("train", path, *[part for item in sets for part in ("--set", item)])
    assert found.exit_code == 2
    assert says in found.stderr


def test_an_unknown_model_names_the_known_ones(kifu: Kifu, experiment: Write, tmp_path: Path) -> None:
    path = experiment('engine = "recurrent"\nhidden = 64', 'model = "no/such model"')
    changes = (
        ('"actor_critic"', '"grpo"'),
        ("options = { entropy_coefficient = 0.02 }", ""),
        ("group_size = 1", "group_size = 2"),
    )
    text = path.read_text().replace('"bootstrap"', '"exclude"')
    for old, new in changes:
        text = text.replace(old, new)
    path.write_text(text)
    found = kifu("train", path, "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "no model `no/such model`" in found.stderr
    assert "Known: " in found.stderr


def test_a_missing_file_names_what_was_expected(kifu: Kifu, tmp_path: Path) -> None:
    found = kifu("train", tmp_path / "none.toml")
    assert found.exit_code == 2
    assert "none.toml: no such file" in found.stderr
    assert "kifu init" in found.stderr


def test_an_unknown_profile_names_the_known_ones(kifu: Kifu, experiment: Write) -> None:
    found = kifu("train", experiment(), "--profile", "chek")
    assert found.exit_code == 2
    assert "no profile `chek`" in found.stderr
    assert "`check`" in found.stderr


def test_a_folder_that_holds_a_run_is_not_overwritten(kifu: Kifu, experiment: Write, finished: Path) -> None:
    before = (finished / "run.json").read_bytes()
    found = kifu("train", experiment(), "--profile", "check", "--out", finished)
    assert found.exit_code == 4
    assert "already holds a run" in found.stderr
    assert f"kifu resume {finished}" in found.stderr
    assert (finished / "run.json").read_bytes() == before


@pytest.mark.parametrize("command", ["resume", "eval", "audit", "replay", "show", "report"])
def test_a_run_of_a_newer_format_is_refused(kifu: Kifu, copied: Path, command: str) -> None:
    path = copied / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    found = kifu(command, copied)
    assert found.exit_code == 4
    assert "format 99" in found.stderr
    assert "Upgrade kifu" in found.stderr


def test_a_run_that_another_process_writes_is_refused(kifu: Kifu, copied: Path) -> None:
    lock = RunLock(copied)
    try:
        found = kifu("resume", copied)
    finally:
        lock.release()
    assert found.exit_code == 4
    assert str(os.getpid()) in found.stderr
    assert kifu("audit", copied, "--no-scores").exit_code == 0


def test_an_environment_that_always_fails_stops_the_run_with_its_reason(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "world", "--folder", tmp_path).exit_code == 0
    source = tmp_path / "world.py"
    source.write_text(
        source.read_text().replace('        return "entrance"\n', '        raise OSError("no doors today")\n')
    )
    found = kifu("train", tmp_path / "world.toml", "--profile", "check", "--out", tmp_path / "run")
    assert found.exit_code == 3
    assert "infrastructure error" in found.stderr
    assert "no doors today" in found.stderr
    assert "Mend the cause" in found.stderr


def test_check_names_missing_fields_and_does_not_say_ready(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "bare", "--folder", tmp_path).exit_code == 0
    source = tmp_path / "bare.py"
    source.write_text(source.read_text().replace('        "hidden": ', '        "hiden": '))
    found = kifu("check", tmp_path / "bare.toml", "--json")
    assert found.exit_code == 2
    assert json.loads(found.stdout)["missing"] == ["environment.hidden"]
    refused = kifu("train", tmp_path / "bare.toml", "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert "environment.hidden" in refused.stderr


def test_check_measures_what_the_run_will_need(kifu: Kifu, experiment: Write, tmp_path: Path) -> None:
    found = kifu("check", experiment(), "--json")
    assert found.exit_code == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["missing"] == []
    assert report["step_s"] > 0
    assert report["run_s"] == pytest.approx(report["step_s"] * 150)
    assert report["memory_bytes"] > 50e6
    scores = {score["agent"]: score["mean"] for score in report["scores"]}
    assert scores["null"] == 0.0
    assert scores["gold"] == 1.0
    assert 0.0 < scores["random"] < 0.7
    assert not (tmp_path / "runs").exists()


def test_the_schema_of_experiment_files_knows_every_layer(kifu: Kifu) -> None:
    found = kifu("check", "--schema")
    schema = json.loads(found.stdout)
    layers = {"environment", "policy", "record", "credit", "update", "evaluation"}
    assert set(schema["properties"]) == layers | {"kifu", "machine", "profiles", "stages"}


def test_an_interrupted_run_ends_with_130_and_is_finished_by_resume(
    kifu: Kifu, experiment: Write, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    program = "from kifu.cli import main\nmain()\n"
    sets = ["--set", "update.steps=12", "--set", "update.prompts_per_step=4", "--set", "evaluation.tasks=4"]
    slow = ["--set", 'environment.name="slow.py:SlowDoor"']
    (tmp_path / "slow.py").write_text(
        "import time\nfrom kifu.envs.suites.key_door import KeyDoor\n\n\nclass SlowDoor(KeyDoor):\n"
        "    def reset(self, task, seed):\n        time.sleep(0.05)\n        return super().reset(task, seed)\n"
    )
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            "train",
            str(experiment()),
            "--profile",
            "check",
            "--out",
            str(out),
            *sets,
            *slow,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        assert child.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert f"kifu resume {out}" in errors
    assert "Traceback" not in errors
    done = metrics.read_bytes().count(b"\n")
    assert done < 12

    resumed = kifu("resume", out, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["steps"] == 12
    audited = kifu("audit", out, "--json")
    assert audited.exit_code == 0, audited.stdout


def test_attempts_the_collector_cut_are_told_beside_the_figure(kifu: Kifu, experiment: Write, tmp_path: Path) -> None:
    """Opening the door takes four turns at least, so a limit of one turn cuts every attempt that has not failed."""
    path, out = experiment("collector_limits = { turns = 12 }", "collector_limits = { turns = 1 }"), tmp_path / "run"
    trained = kifu("train", path, "--profile", "check", "--out", out)
    assert trained.exit_code == 0, trained.stderr
    assert "of 4 attempts were cut by the collector (turn_limit " in trained.stdout
    assert re.search(r"\(4 tasks; ([1-4]) of 4 attempts cut: \1 by turn_limit\)", trained.stderr)
    assert "of 2 attempts were cut by the collector (turn_limit " in kifu("eval", out, "--tasks", 2).stdout


def test_a_run_without_an_informative_group_says_that_no_weight_changed(
    kifu: Kifu, experiment: Write, tmp_path: Path
) -> None:
    """One turn opens no door, so all attempts of a group are paid alike and there is nothing to compare."""
    path = experiment("collector_limits = { turns = 12 }", "collector_limits = { turns = 1 }")
    plain, grouped = tmp_path / "plain", tmp_path / "grouped"
    compared = ["credit={ algorithm = 'grpo' }", "update.group_size=4", "environment.on_truncation=terminal"]
    chosen = [word for override in compared for word in ("--set", override)]
    trained = kifu("train", path, "--profile", "check", "--out", grouped, *chosen)
    assert trained.exit_code == 0, trained.stderr
    assert "version 0)  no update changed a weight" in trained.stdout
    assert [path.name for path in (grouped / "weights").glob("v0*")] == ["v00000.full.zst"]
    assert "no update" not in kifu("train", path, "--profile", "check", "--out", plain).stdout


def test_a_run_of_which_only_the_end_was_measured_has_no_before(kifu: Kifu, experiment: Write, tmp_path: Path) -> None:
    """Resuming a finished run measures its last version alone."""
    out = tmp_path / "run"
    first = kifu("train", experiment(), "--profile", "check", "--out", out)
    assert [line.split()[0] for line in first.stdout.splitlines()[:2]] == ["before", "after"]
    assert kifu("resume", out).stdout.startswith("after   success ")


STINGY = """from dataclasses import replace

from kifu.envs.suites.key_door import KeyDoor


class Stingy(KeyDoor):
    def verify(self):
        return replace(super().verify(), success=False)
"""


def test_a_run_without_an_informative_group_stops_with_advice_and_is_sound_and_resumable(
    kifu: Kifu, experiment: Write, tmp_path: Path
) -> None:
    """Nobody is ever paid; after two such steps it stops, and a resumed run goes one step on before it does again."""
    (tmp_path / "stingy.py").write_text(STINGY)
    path, run = experiment('name = "key_door"', f'name = "{tmp_path}/stingy.py:Stingy"'), tmp_path / "run"
    text = (
        path.read_text().replace('"actor_critic"', '"grpo"').replace("options = { entropy_coefficient = 0.02 }\n", "")
    )
    text = text.replace('"bootstrap"', '"terminal"').replace("group_size = 1", "group_size = 2")
    path.write_text(text)
    sets = ("--set", "update.steps=6", "--set", "update.patience=2", "--set", "update.prompts_per_step=2")

    for closed, command in ((2, ("train", path, "--profile", "check", "--out", run, *sets)), (3, ("resume", run))):
        stopped = kifu(*command)
        assert stopped.exit_code == 1, stopped.stderr
        assert "2 steps in a row without an informative group" in stopped.stderr
        levers = ("group_size", "easier tasks", "demonstrations", "policy.decoding.temperature = [0.8, 1.0, 1.2]")
        assert [lever for lever in levers if lever not in stopped.stderr] == []
        assert "Traceback" not in stopped.stderr
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [(row["step"], row["applied"], row["ledger"]["closed"]) for row in steps] == [
            (step, False, True) for step in range(closed)
        ]
        assert json.loads((run / "run.json").read_text())["status"].startswith("stopped: 2 steps in a row")
        assert kifu("audit", run).exit_code == 0
