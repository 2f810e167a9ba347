"""An environment that hangs when it is asked outside of rollouts: a message comes within its time limit."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.envs import Task
from kifu.errors import EnvironmentFailure
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

WORLDS = Path(__file__).with_name("hanging_worlds.py")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("InTasks", "listing the task of seed 0 of split `train`"),
        ("InClose", "closing it"),
        ("InMaking", "making an instance"),
        ("InTools", "listing its tools"),
    ],
)
def test_a_question_that_is_never_answered_ends_the_preparation(
    load: Callable[..., Loaded], tmp_path: Path, name: str, says: str
) -> None:
    loaded = load(f"environment.name='{WORLDS}:{name}'", "environment.collector_limits.tool_seconds=0.2")
    began = time.perf_counter()
    with pytest.raises(EnvironmentFailure, match=f"{says}: no answer within 0.2 s"):
        train(loaded, out=tmp_path / "run", quiet=True)
    assert time.perf_counter() - began < 20
    assert not (tmp_path / "run").exists()


def test_the_task_of_a_record_and_a_gold_answer_are_waited_for_as_long_as_the_experiment_says(
    load: Callable[..., Loaded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(f"environment.name='{WORLDS}:Later'", "environment.collector_limits.tool_seconds=0.5")
    train(loaded, out=tmp_path / "run", quiet=True)
    prepared = prepare(loaded)
    monkeypatch.setattr(prepared.environment, "hangs", True)
    began = time.perf_counter()

    with pytest.raises(EnvironmentFailure, match=r"of split `train`: no answer within 0\.5 s"):
        prepared.task_of(RunReader(tmp_path / "run").find("train/s0/t00000/g0000/m000/a0"))
    with pytest.raises(EnvironmentFailure, match=r"gold answer of t: no answer within 0\.5 s"):
        prepared.gold_answer(Task(id="t"))

    assert time.perf_counter() - began < 20
