"""One real run of the small recurrent policy, made by the command itself and shared by every test of the room."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import CliRunner, Result

from kifu.cli import app

EXPERIMENT = """
kifu = 1

[environment]
name = "key_door"
splits = { train = "seed 0..", held_out = "seed 5_000_000.." }
decision_model = "tool call, POMDP"
collector_limits = { turns = 12 }
on_truncation = "bootstrap"

[policy]
engine = "recurrent"
hidden = 64

[credit]
algorithm = "actor_critic"
options = { entropy_coefficient = 0.02 }
gamma = 0.99

[update]
steps = 150
prompts_per_step = 32
group_size = 1
optimizer = { type = "adamw", learning_rate = 3e-3 }

[evaluation]
split = "held_out"
tasks = 64

[profiles.check.update]
steps = 2
prompts_per_step = 4
[profiles.check.evaluation]
tasks = 4
"""
"""A small experiment in every field the tests change."""


class Kifu(Protocol):
    def __call__(self, *arguments: object) -> Result: ...


@pytest.fixture(scope="session")
def kifu() -> Kifu:
    """Runs the command in this process; output and errors are kept apart."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def finished(kifu: Kifu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps; shared, so read only."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(EXPERIMENT)
    out = folder / "run"
    sets = ("update.steps=3", "evaluation.tasks=6", "record.checkpoint_every=2")
    arguments = [part for item in sets for part in ("--set", item)]
    found = kifu("train", folder / "small.toml", "--profile", "check", "--seed", 1, "--out", out, *arguments)
    assert found.exit_code == 0, found.stderr
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes the small experiment with one text replaced by another."""

    def write(old: str = "", new: str = "") -> Path:
        assert old in EXPERIMENT
        path = tmp_path / "experiment.toml"
        path.write_text(EXPERIMENT.replace(old, new, 1) if old else EXPERIMENT)
        return path

    return write
