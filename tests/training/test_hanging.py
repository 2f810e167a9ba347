"""An environment that hangs while a run is prepared: a message comes within its time limit."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import EnvironmentFailure
from kifu.training.experiment import Loaded
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
