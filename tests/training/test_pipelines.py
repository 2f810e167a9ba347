"""The pipelines that docs/experiment.md shows, run as they stand there on the attempts of a finished run."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kifu.records import Purpose
from kifu.records.plan import PlanRow, read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import parse_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train

PAGE = Path(__file__).parents[2] / "docs" / "experiment.md"
BLOCKS = {
    found[1]: tomllib.loads(found[2])
    for found in re.finditer(r"```toml\n# (\w+): .*?\n(.*?)```", PAGE.read_text(), re.DOTALL)
}
COMMON: dict[str, Any] = {
    "kifu": 1,
    "environment": {"name": "key_door", "decision_model": "tool call, POMDP", "on_truncation": "terminal"},
    "policy": {"engine": "recurrent", "hidden": 16},
    "evaluation": {"tasks": 2},
    "machine": {"threads": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `runs/source` holds 64 attempts of a random policy."""
    place = tmp_path_factory.mktemp("pipelines")
    update = {
        "steps": 1,
        "prompts_per_step": 4,
        "group_size": 16,
        "optimizer": {"type": "adamw", "learning_rate": 1e-9},
    }
    table = {**COMMON, "credit": {"algorithm": "reinforce", "gamma": 1.0}, "update": update}
    train(
        parse_experiment(table, name="source", folder=place, where="source"), out=place / "runs" / "source", quiet=True
    )
    return place


def test_the_page_shows_four() -> None:
    assert set(BLOCKS) == {"dpo", "offline_awr", "rlhf_ppo", "rft"}


@pytest.mark.parametrize("method", sorted(BLOCKS))
def test_a_pipeline_of_the_page_trains_from_the_attempts_it_names(method: str, folder: Path) -> None:
    loaded = parse_experiment({**COMMON, **BLOCKS[method]}, name=method, folder=folder, where=f"{method}.toml")
    run = folder / method
    result = train(loaded, out=run, seed=1, quiet=True)

    rows = [row for line in read_plan(run) for row in line.rows]
    theirs = {item.id: item for item in RunReader(folder / "runs" / "source").trajectories()}
    mine = {item.id: item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN}
    assert rows
    assert result.version > 0
    if method in ("dpo", "offline_awr"):
        assert mine == {}, "nothing is sampled but for evaluations"
        assert {row.trajectory for row in rows} <= set(theirs)
    else:
        assert {row.trajectory for row in rows} <= set(mine)
    CHECKS[method](rows)
    report = audit(run)
    assert (report.problems, report.ledger_closed) == ((), True)


def prefers_the_better(rows: list[PlanRow]) -> None:
    """Of each pair, the side with advantages above 0 has the larger reward."""
    sides = [(row.runs[0].advantage > 0, row.reward or 0.0) for row in rows]
    assert {reward for is_preferred, reward in sides if is_preferred} == {1.0}
    assert {reward for is_preferred, reward in sides if not is_preferred} == {0.0}
    assert all(len(row.reference) == row.tokens for row in rows)


def weighs_successes_more(rows: list[PlanRow]) -> None:
    """A success stands above what the data expects, a failure below."""
    good = [part.advantage for row in rows if row.reward == 1.0 for part in row.runs]
    bad = [part.advantage for row in rows if row.reward == 0.0 for part in row.runs]
    assert min(good) > max(bad)


def is_paid_by_the_model(rows: list[PlanRow]) -> None:
    """Every attempt has a score and a reference."""
    assert all(row.model_score is not None and len(row.reference) == row.tokens for row in rows)


def takes_successes_alone(rows: list[PlanRow]) -> None:
    """Nothing else is imitated."""
    assert {row.reward for row in rows} == {1.0}


CHECKS = {
    "dpo": prefers_the_better,
    "offline_awr": weighs_successes_more,
    "rlhf_ppo": is_paid_by_the_model,
    "rft": takes_successes_alone,
}
