"""A budget of rollouts goes where attempts should disagree, stands in the plan, and is given again the same."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import ArgumentError, ExperimentError, RecordError
from kifu.records import Purpose, Trajectory, content_digest
from kifu.records.plan import Allocation, PlanLine, read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.run import train

Load = Callable[..., Loaded]
PROMPTS, BUDGET, ROOTS, ATTEMPTS, PRIOR, STEPS = 6, 12, 8, 2, 2.0, 4


def settings(budget: int = BUDGET) -> tuple[str, ...]:
    """Four chosen of six candidates, two attempts at each, four branches; tasks come again every step."""
    return (
        f"credit={{ algorithm = 'trace_budget', options = {{ budget = {budget}, root_share = 0.67 }} }}",
        "environment.on_truncation=terminal",
        "environment.splits.train='seed 0..5'",
        "update.group_size=2",
        f"update.prompts_per_step={PROMPTS}",
        f"update.steps={STEPS}",
        "update.patience=50",
        "update.optimizer.learning_rate=0.01",
    )


def budgeted(load: Load, *overrides: str, budget: int = BUDGET) -> Loaded:
    return load(*settings(budget), *overrides)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budget") / "run"


@pytest.fixture
def run(place: Path, load: Load) -> Path:
    """A finished run, made once."""
    if not place.exists():
        train(budgeted(load), out=place, quiet=True)
    return place


def rollouts(run: Path) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]


def lines_of(run: Path) -> list[PlanLine]:
    return [line for line in read_plan(run) if line.rows or line.buckets][:STEPS]


def rate(items: list[Trajectory], *, towards: float) -> float:
    won = sum(item.verdict is not None and item.verdict.success is True for item in items)
    return (won + PRIOR * towards) / (len(items) + PRIOR)


def test_what_the_plan_says_is_what_was_run(run: Path) -> None:
    """Counts of roots and of branches at every place, and none beside them."""
    branches = 0
    for line in lines_of(run):
        items = [item for item in rollouts(run) if item.key.step == line.step]
        whole = Counter((item.key.group, item.task.id) for item in items if item.branch is None)
        grown = Counter((item.branch.parent, item.branch.turn) for item in items if item.branch is not None)
        told = [one for one in line.allocated if one.parent is None]
        assert len(told) == PROMPTS
        assert whole == Counter({(one.group, one.task): one.rollouts for one in told if one.rollouts})
        assert grown == Counter({(one.parent, one.turn): one.rollouts for one in line.allocated if one.parent})
        assert {item.branch.chosen_by for item in items if item.branch} <= {"expected disagreement"}
        assert sum(whole.values()) == ROOTS
        assert len(items) <= BUDGET
        assert sorted(one.rollouts for one in told) == [0, 0, *[ATTEMPTS] * 4]
        branches += sum(grown.values())
    assert branches > 0


def test_predictions_are_rates_of_earlier_steps_and_the_likeliest_to_disagree_are_chosen(run: Path) -> None:
    """Written out: the rate of a task towards its family's, that towards the rate of all, that towards one half."""
    items = rollouts(run)
    moved = 0
    for line in lines_of(run):
        before = [item for item in items if item.key.step < line.step]
        overall = rate(before, towards=0.5)
        told = [one for one in line.allocated if one.parent is None]
        for one in told:
            families = {item.task.family for item in items if item.task.id == one.task}
            if not families:
                continue
            family = rate([item for item in before if item.task.family in families], towards=overall)
            expected = rate([item for item in before if item.task.id == one.task], towards=family)
            assert one.success == pytest.approx(expected, abs=1e-12)
            moved += one.success != 0.5
        spread = [1 - one.success**ATTEMPTS - (1 - one.success) ** ATTEMPTS for one in told]
        chosen = [value for value, one in zip(spread, told, strict=True) if one.rollouts]
        others = [value for value, one in zip(spread, told, strict=True) if not one.rollouts]
        assert min(chosen) >= max(others)
    assert moved > 0


def test_continuations_go_where_the_next_one_is_likeliest_to_end_otherwise(run: Path) -> None:
    """One more at any place that got some is worth no more than the last one given, and at others no more than any."""
    judged = {item.id: item.verdict.success for item in rollouts(run) if item.verdict is not None}
    for line in lines_of(run):
        gains = []
        for one in (one for one in line.allocated if one.parent):
            stays = one.success if judged[str(one.parent)] else 1 - one.success
            gains.append((stays ** (one.rollouts - 1) * (1 - stays), stays**one.rollouts * (1 - stays)))
        if gains:
            assert min(last for last, _ in gains) >= max(following for _, following in gains) - 1e-12


def test_the_record_is_whole(run: Path) -> None:
    report = audit(run, scores=False)

    assert (report.problems, report.ledger_closed, report.rebuilt) == ((), True, report.records)


@pytest.mark.parametrize("accepted", [10, 30])
def test_a_killed_run_allocates_the_same(
    accepted: int, run: Path, kill_and_resume: Callable[..., None], tmp_path: Path
) -> None:
    """Killed with some rollouts of a step on disk, among them whole ones and branches."""
    kill_and_resume(tmp_path / "run", *settings(), crash_at=f"wal.after_fsync#{accepted}")

    assert [line.allocated for line in lines_of(tmp_path / "run")] == [line.allocated for line in lines_of(run)]
    assert [content_digest(item) for item in rollouts(tmp_path / "run")] == [
        content_digest(item) for item in rollouts(run)
    ]


def test_a_budget_that_is_not_the_steps_is_refused(load: Load) -> None:
    with pytest.raises(ExperimentError, match=r"a budget of 20 rollouts a step.*6 x 2 = 12"):
        prepare(budgeted(load, budget=20))


def test_an_environment_that_cannot_branch_is_refused(load: Load) -> None:
    with pytest.raises(ExperimentError, match="rollouts cannot branch in it"):
        prepare(budgeted(load, f"environment.name='{Path(__file__).parents[1] / 'branching_worlds.py'}:UnkeptKeyDoor'"))


def test_roots_must_hold_one_choice(load: Load) -> None:
    with pytest.raises((ArgumentError, ExperimentError), match="1 <= attempts <= roots <= budget, found 9, 8, 12"):
        prepare(budgeted(load, "credit.options.rollouts=9"))


def test_an_allocation_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(RecordError, match="parent and turn together"):
        Allocation(group=0, task="t", success=0.5, rollouts=1, parent="p")
    with pytest.raises(RecordError, match="a probability"):
        Allocation(group=0, task="t", success=1.5, rollouts=1)
