"""The tutorial's files work as printed: the environment keeps its contract, the run audits and replays."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from kifu import audit, load_experiment
from kifu.envs import SPLITS, resolve_environment
from kifu.records import Origin, RunReader
from kifu.testing import check_env
from kifu.training.inspection.replay import replay_run
from kifu.training.run import train

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "your_own_environment.md").read_text()


def blocks(language: str) -> list[str]:
    """Code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tutorial's two files, and the experiment once more with its warm start."""
    place = tmp_path_factory.mktemp("tutorial")
    experiment, warm = blocks("toml")
    (place / "post_office.py").write_text(blocks("python")[0])
    (place / "post_office.toml").write_text(experiment)
    (place / "warm.toml").write_text(experiment.replace("[update]\n", f"[update]\n{warm}", 1))
    return place


def test_the_environment_keeps_the_contract(folder: Path) -> None:
    check_env(resolve_environment(f"{folder}/post_office.py:PostOffice"), resets=100)


def test_no_parcel_stands_in_two_splits(folder: Path) -> None:
    cls = resolve_environment(f"{folder}/post_office.py:PostOffice")
    found = {
        split: {json.dumps(dict(task.data)) for task in islice(cls.tasks(split, SPLITS[split].start), 300)}
        for split in ("train", "held_out", "demonstration")
    }
    assert not found["train"] & found["held_out"]
    assert not (found["train"] | found["held_out"]) & found["demonstration"]


def test_the_experiment_trains_in_check_mode_and_its_run_audits_and_replays(folder: Path, tmp_path: Path) -> None:
    loaded = load_experiment(folder / "post_office.toml", profile="check", overrides=["machine.threads=1"])

    train(loaded, out=tmp_path / "run", quiet=True)

    report = audit(tmp_path / "run")
    assert (report.problems, report.not_rebuildable, report.ledger_closed) == ((), (), True)
    assert report.rebuilt == report.records >= 2 * 2 * 4 + 4
    replayed = replay_run(tmp_path / "run")
    assert {(item.differences, item.why_not) for item in replayed.values()} == {((), None)}
    assert len(replayed) == report.records


def test_the_warm_start_shows_demonstrations_before_the_first_rollout(folder: Path, tmp_path: Path) -> None:
    overrides = ["update.warm_start.steps=1", "update.warm_start.traces_per_step=4", "update.steps=1"]
    loaded = load_experiment(folder / "warm.toml", profile="check", overrides=[*overrides, "machine.threads=1"])

    train(loaded, out=tmp_path / "run", quiet=True)

    shown = [item for item in RunReader(tmp_path / "run").trajectories() if item.key.purpose == "demonstration"]
    assert [item.key.step for item in shown] == [0] * 4
    assert all(any(span.origin is Origin.DEMONSTRATION for span in item.tape_spans(0)) for item in shown)
