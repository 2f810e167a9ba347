"""What a model told of turns is asked again in an audit, and what was changed is named by turn and name."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kifu.monitor import RunFolder
from kifu.records import RunReader, RunStore, Trajectory
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train

RECIPES = Path(__file__).parents[3] / "recipes"
SMALL = (
    "update.steps=2",
    "update.prompts_per_step=2",
    "update.group_size=4",
    "update.optimizer.learning_rate=0.01",
    "evaluation.tasks=1",
    "machine.threads=1",
    "machine.sampler_dtype='float32'",
)
NAMES = {
    "trace_turn_credit": {"gold_logprob", "gold_logprob_after"},
    "hcapo": {"hindsight_logprob"},
    "ppo": {"value"},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of one method, made once: frozen weights tell the gold answers, the present ones everything else."""
    made: dict[str, Path] = {}

    def get(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp(method) / "run"
            train(experiment(method), out=made[method], quiet=True)
        return made[method]

    return get


def experiment(method: str) -> Loaded:
    name, more = ("key_door", ("policy.hidden=16",)) if method == "ppo" else ("key_door_text", ())
    overrides = (f"credit={{ algorithm = '{method}' }}", "environment.on_truncation='terminal'", *SMALL, *more)
    kept = tuple(item for item in overrides if method != "ppo" or "sampler_dtype" not in item)
    return load_experiment(RECIPES / f"{name}.toml", profile="check", overrides=kept)


def told(run: Path, name: str) -> list[tuple[Trajectory, int]]:
    """Records and turns of which something is told under this name by weights that learned already, where any did."""
    found = [
        (one.policy_version, item, turn.index)
        for item in RunReader(run).trajectories()
        for turn in item.turns
        for one in turn.estimates
        if one.name == name
    ]
    last = max(version for version, _, _ in found)
    return [(item, turn) for version, item, turn in found if version == last]


def forged(run: Path, into: Path, changed: Trajectory) -> Path:
    """The run with another record under the same id, written by the run's own store: every digest fits."""
    records = [changed if item.id == changed.id else item for item in RunReader(run).trajectories()]
    shutil.copytree(run, into)
    for name in ("records", "wal"):
        shutil.rmtree(into / name, ignore_errors=True)
    with RunStore(into) as store:
        for item in records:
            store.accept(item).result()
        store.seal(0)
        head = store.head
    RunFolder(root=into).write_facts({**RunFolder(root=into).facts(), "head": head})
    return into


@pytest.mark.parametrize("method", list(NAMES))
def test_what_is_on_record_is_told_again(method: str, finished: Callable[[str], Path]) -> None:
    run = finished(method)
    assert all(told(run, name) for name in NAMES[method])

    report = audit(run)

    assert (report.problems, report.not_rebuildable) == ((), ())


@pytest.mark.parametrize(("method", "name"), [(method, name) for method, names in NAMES.items() for name in names])
def test_a_changed_number_is_named(method: str, name: str, finished: Callable[[str], Path], tmp_path: Path) -> None:
    item, at = told(finished(method), name)[-1]
    turn = item.turns[at]
    estimates = tuple(replace(one, value=one.value - 0.01) if one.name == name else one for one in turn.estimates)
    turns = (*item.turns[:at], replace(turn, estimates=estimates), *item.turns[at + 1 :])
    run = forged(finished(method), tmp_path / "run", replace(item, turns=turns))

    found = [problem for problem in audit(run).problems if f"`{name}` is recorded as" in problem.what]

    assert [(problem.trajectory, problem.what.split(":")[0]) for problem in found] == [(item.id, f"turn {at}")]
    assert not any("is recorded as" in problem.what for problem in audit(run, scores=False).problems)


def test_a_number_that_was_taken_away_is_named(finished: Callable[[str], Path], tmp_path: Path) -> None:
    item, at = told(finished("hcapo"), "hindsight_logprob")[0]
    turns = tuple(replace(turn, estimates=()) if turn.index == at else turn for turn in item.turns)
    run = forged(finished("hcapo"), tmp_path / "run", replace(item, turns=turns))

    found = [problem.what for problem in audit(run).problems if problem.trajectory == item.id]

    assert any(what.startswith(f"turn {at}: `hindsight_logprob` is recorded as None") for what in found)
