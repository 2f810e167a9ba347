"""Methods that read V before every token train where a turn is one token, and are refused elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.records import Purpose
from kifu.records.plan import PlanLine, read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.explain import explain_step
from kifu.training.run import train

Load = Callable[..., Loaded]
RECIPES = Path(__file__).parents[2] / "recipes"


def residuals(rewards: Sequence[float], values: Sequence[float], *, gamma: float, decay: float) -> list[float]:
    """Advantages of consecutive decisions, by the definition: sum over j of (gamma decay)^j delta."""
    found = []
    for first in range(len(rewards)):
        total = 0.0
        for at in range(first, len(rewards)):
            following = values[at + 1] if at + 1 < len(values) else 0.0
            delta = rewards[at] + gamma * following - values[at]
            total += (gamma * decay) ** (at - first) * delta
        found.append(total)
    return found


def bilevel(rewards: Sequence[float], values: Sequence[float]) -> list[float]:
    """A turn's only token gets the worth of the turn minus its own value: the estimate over turns alone."""
    return residuals(rewards, values, gamma=0.95, decay=1.0)


def compaction(rewards: Sequence[float], values: Sequence[float]) -> list[float]:
    return residuals(rewards, values, gamma=1.0, decay=1 - 1 / (1.5 * len(rewards)))


def planned(line: PlanLine, name: str) -> list[float]:
    row = next(row for row in line.rows if row.trajectory == name)
    return [run.advantage for run in row.runs for _ in range(run.stop - run.start)]


@pytest.mark.parametrize(("method", "estimate"), [("bilevel_gae", bilevel), ("compaction_gae", compaction)])
def test_a_run_has_the_advantages_of_its_record(
    method: str, estimate: Callable[[Sequence[float], Sequence[float]], list[float]], load: Load, tmp_path: Path
) -> None:
    train(
        load(
            f"credit={{ algorithm = '{method}', options = {{ whiten = false }} }}",
            "environment.on_truncation=terminal",
            "update.optimizer.learning_rate=0.01",
        ),
        out=tmp_path / "run",
        quiet=True,
    )
    lines = read_plan(tmp_path / "run")
    trained = [item for item in RunReader(tmp_path / "run").trajectories() if item.key.purpose is Purpose.TRAIN]
    assert len(trained) == 8
    assert max(len(item.turns) for item in trained) > 3
    for item in trained:
        values = [float(turn.estimate("value") or 0.0) for turn in item.turns]
        rewards = [0.0] * (len(values) - 1) + [float(item.reward or 0.0)]
        assert planned(lines[item.key.step], item.id) == pytest.approx(estimate(rewards, values), abs=1e-6)
    assert "the run's plan holds these numbers" in explain_step(tmp_path / "run", 1)["notes"]


@pytest.mark.parametrize("method", ["bilevel_gae", "compaction_gae"])
def test_a_language_model_is_refused_and_told_why(method: str) -> None:
    loaded = load_experiment(
        RECIPES / "key_door_text.toml", profile="check", overrides=(f"credit={{ algorithm = '{method}' }}",)
    )
    with pytest.raises(ExperimentError, match=r"needs V before every sampled token.*use engine = `recurrent`"):
        prepare(loaded)
