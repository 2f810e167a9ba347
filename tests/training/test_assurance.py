"""Verdicts made where the policy's own code runs are trained on only where the experiment says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from kifu.envs import Capabilities
from kifu.envs.suites.key_door import KeyDoor
from kifu.errors import ExperimentError, FailureRateError
from kifu.records import Verdict
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

HERE = Path(__file__).resolve()
Load = Callable[..., Loaded]


class Silent(KeyDoor):
    """Its verdicts say that they were made in process; it does not declare it."""

    def verify(self) -> Verdict:
        """As the room says."""
        return replace(super().verify(), assurance="in_process", verifier="silent/1")


class Trusting(Silent):
    """Declares what its verdicts are."""

    capabilities: ClassVar[Capabilities] = replace(KeyDoor.capabilities, in_process=True)


def test_an_experiment_that_does_not_say_so_is_refused_before_anything_is_written(load: Load, tmp_path: Path) -> None:
    loaded = load(f"environment.name='{HERE}:Trusting'")
    for start in (lambda: prepare(loaded), lambda: train(loaded, out=tmp_path / "run", quiet=True)):
        with pytest.raises(ExperimentError, match=r'can read what they expect.*set assurance = "in_process"'):
            start()
    assert not (tmp_path / "run").exists()


def test_one_that_says_so_trains_and_every_record_names_the_assurance(load: Load, tmp_path: Path) -> None:
    said = load(f"environment.name='{HERE}:Trusting'", "environment.assurance='in_process'", "update.steps=1")
    train(said, out=tmp_path / "run", quiet=True)
    found = [record.verdict for record in RunReader(tmp_path / "run").trajectories()]
    assert {verdict.assurance for verdict in found if verdict is not None} == {"in_process"}
    assert {verdict.reward for verdict in found if verdict is not None} <= {0.0, 1.0}
    held = prepare(said).protocol.tables["environment"]
    assert (held["assurance"], held["capabilities"]["in_process"]) == ("in_process", True)


def test_what_an_environment_does_not_declare_is_its_verifiers_failure_and_no_reward(
    load: Load, tmp_path: Path
) -> None:
    with pytest.raises(FailureRateError, match=r"verifier_error: a verdict of silent/1 has assurance `in_process`"):
        train(load(f"environment.name='{HERE}:Silent'"), out=tmp_path / "run", quiet=True)
    found = [*RunReader(tmp_path / "run").trajectories()]
    assert found
    assert {record.reward for record in found} == {None}
