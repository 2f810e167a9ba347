"""A run whose environment's file is another one by now: nobody acts in it, everybody can still read the run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.envs.files import LOADED_FROM_FILE
from kifu.errors import ExperimentError
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.inspection.evaluate import Evaluation, evaluate
from kifu.training.inspection.replay import replay_run
from kifu.training.run import resume, train

WORLD = """from kifu.envs.suites.key_door import KeyDoor


class World(KeyDoor):
    def verify(self):
        return super().verify()
"""
SMALL = ("update.steps=1", "update.prompts_per_step=2", "evaluation.tasks=2", "machine.threads=1")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / f"changed_{tmp_path.name}.py"
    path.write_text(WORLD)
    return path


@pytest.fixture
def run(load: Callable[..., Loaded], world: Path, tmp_path: Path) -> Path:
    """A finished run in that world."""
    train(load(f"environment.name='{world}:World'", *SMALL), out=tmp_path / "run", quiet=True)
    return tmp_path / "run"


def test_who_would_act_in_a_changed_world_is_told_which_file_and_what_to_do(run: Path, world: Path) -> None:
    world.write_text(WORLD.replace("super().verify()", "None"))

    for act in (lambda: resume(run, quiet=True), lambda: evaluate(run, Evaluation(tasks=1))):
        with pytest.raises(ExperimentError, match=rf"`{world.stem}` is \w{{12}}, was \w{{12}}.*another `version`"):
            act()

    assert not (run / "evaluations").exists()


def test_a_changed_world_takes_nothing_from_who_only_reads(run: Path, world: Path) -> None:
    world.write_text(WORLD + "\n# later\n")

    assert audit(run).problems == ()
    assert all(not found.differences and not found.why_not for found in replay_run(run).values())


def test_with_the_file_put_back_the_run_is_what_it_was(run: Path, world: Path) -> None:
    world.write_text("raise SystemExit\n")
    world.write_text(WORLD)

    assert evaluate(run, Evaluation(tasks=1)).attempts == 1
    assert resume(run, quiet=True).steps == 1


def test_the_frozen_protocol_names_the_file_and_a_built_in_world_none(
    load: Callable[..., Loaded], run: Path, world: Path, tmp_path: Path
) -> None:
    train(load(*SMALL), out=tmp_path / "built_in", quiet=True)

    name = world.stem.removeprefix(LOADED_FROM_FILE)
    assert f"[environment.source]\n{name} = " in (run / "protocol.toml").read_text()
    assert "[environment.source]" not in (tmp_path / "built_in" / "protocol.toml").read_text()
