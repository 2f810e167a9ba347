"""The clue is remembered: a recurrent policy passes the memoryless optimum, a feed-forward one does not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.envs.suites.key_door import memoryless_optimum
from kifu.evaluation import EvaluationSummary
from kifu.records import RunReader, StopReason
from kifu.records.plan import read_plan
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train

RecipeFile = Callable[..., Loaded]


def _greedy(summary: EvaluationSummary) -> tuple[float, float]:
    """Success and the low end of its interval on red and blue tasks together; both colours are equally many."""
    found = summary.success.to_json()
    assert found["mean"] is not None
    assert found["low"] is not None
    return found["mean"], found["low"]


def test_a_recurrent_policy_passes_the_memoryless_optimum_on_held_out_tasks(
    tmp_path: Path, recipe_file: RecipeFile
) -> None:
    """From nothing to more than any policy without memory reaches, on red and on blue doors separately."""
    loaded = recipe_file("key_door", "update.steps=100", "evaluation.every=1000")
    result = train(loaded, out=tmp_path / "run", seed=1, quiet=True)
    optimum = memoryless_optimum().value
    assert _greedy(result.evaluations[0])[0] <= optimum == 0.5
    assert _greedy(result.evaluations[-1])[1] > optimum + 0.2
    families = result.evaluations[-1].to_json()["by_family"]
    assert set(families) == {"red", "blue"}
    assert min(family["mean"] for family in families.values()) >= 0.95


def test_a_feed_forward_policy_stays_at_the_memoryless_optimum(tmp_path: Path, recipe_file: RecipeFile) -> None:
    """It learns, up to what it can. A greedy policy is deterministic and the tasks are balanced: no interval needed."""
    loaded = recipe_file("key_door", "update.steps=50", "evaluation.every=25", profile="control")
    result = train(loaded, out=tmp_path / "run", seed=0, quiet=True)
    reached = [_greedy(summary)[0] for summary in result.evaluations]
    assert max(reached) == memoryless_optimum().value


def test_training_goes_on_through_cuts_below_the_task_s_budget(tmp_path: Path, recipe_file: RecipeFile) -> None:
    """The collector allows 2 turns, the task 8: cut episodes are trained on, with V(h_T) after the last turn."""
    loaded = recipe_file(
        "key_door", "environment.collector_limits.turns=2", "update.steps=4", "evaluation.tasks=2", profile="shaped"
    )
    result = train(loaded, out=tmp_path / "run", seed=0, quiet=True)
    reader = RunReader(result.folder)
    records = [item for item in reader.trajectories() if item.key.purpose.value == "train"]
    cut = [item for item in records if item.outcome.reason is StopReason.TURN_LIMIT]
    assert len(cut) > len(records) / 4
    assert any(item.outcome.reason is StopReason.FAILURE for item in records)
    assert all(item.final_value is not None and item.final_potential is not None for item in cut)
    planned = {row.trajectory for line in read_plan(result.folder) for row in line.rows}
    assert {item.id for item in records} <= planned


@pytest.mark.slow
@pytest.mark.parametrize("profile", [None, "shaped"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_recipe_as_it_stands_solves_red_and_blue(
    tmp_path: Path, recipe_file: RecipeFile, profile: str | None, seed: int
) -> None:
    """At least 0.95 on either colour, sparse and shaped."""
    result = train(recipe_file("key_door", profile=profile), out=tmp_path / "run", seed=seed, quiet=True)
    families = result.evaluations[-1].to_json()["by_family"]
    assert min(families[colour]["mean"] for colour in ("red", "blue")) >= 0.95
