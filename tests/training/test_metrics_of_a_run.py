"""What a run writes about its steps: only metrics that are explained, and the reuse that its plan says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kifu.monitor import undocumented
from kifu.records.plan import read_plan
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

Load = Callable[..., Loaded]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reused") / "run"


@pytest.fixture
def reused(load: Load, place: Path) -> Path:
    """Two steps with duplicated groups, each update passed over twice; made once."""
    if not place.exists():
        train(
            load(
                "credit={ algorithm = 'dupo', options = { epochs = 2 }, components = { clue = 1.0 } }",
                "environment.on_truncation=terminal",
                "update.steps=2",
                "update.group_size=2",
                "update.prompts_per_step=8",
            ),
            out=place,
            quiet=True,
        )
    return place


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_metric_of_a_run_is_explained(reused: Path) -> None:
    assert undocumented({name for line in lines(reused) for name in line}) == []


def test_copies_and_uses_are_those_of_the_plan(reused: Path) -> None:
    """After the first of two passes a row has been used as often as its group stands in the update."""
    first, *_ = lines(reused)
    rows = next(line for line in read_plan(reused) if (line.step, line.update) == (0, 0)).rows
    places = {row.trajectory.split("/")[3]: row.times_used for row in rows}

    assert first["copies"] == sum(count - 1 for count in places.values()) > 0
    assert first["times_used"] == 2 * max(places.values()) >= 4
