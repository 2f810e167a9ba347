"""Sampling on: tasks without a signal are made up for, each counted, and a resumed run samples the same."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.records import Purpose, Trajectory, content_digest
from kifu.records.ledger import Bucket
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.run import train

Load = Callable[..., Loaded]
WANTED, SIZE, STEPS = 3, 3, 3


def settings(*, rounds: int) -> tuple[str, ...]:
    return (
        f"credit={{ algorithm = 'dapo', options = {{ refill = {rounds} }} }}",
        "environment.on_truncation=terminal",
        f"update.group_size={SIZE}",
        f"update.prompts_per_step={WANTED}",
        f"update.steps={STEPS}",
        "update.patience=50",
    )


def sampling_on(load: Load, *, rounds: int) -> Loaded:
    return load(*settings(rounds=rounds))


def groups_of(run: Path, step: int) -> list[list[Trajectory]]:
    """Attempts of a step by group, in order."""
    found: dict[int, list[Trajectory]] = defaultdict(list)
    for item in RunReader(run).trajectories():
        if item.key.purpose is Purpose.TRAIN and item.key.step == step:
            found[item.key.group].append(item)
    return [found[at] for at in sorted(found)]


def differ(members: list[Trajectory]) -> bool:
    return len({item.reward for item in members}) > 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refill") / "run"


@pytest.fixture
def run(place: Path, load: Load) -> Path:
    """A finished run with many rounds, made once."""
    if not place.exists():
        train(sampling_on(load, rounds=40), out=place, quiet=True)
    return place


def test_every_step_trains_as_many_groups_as_were_asked_for(run: Path) -> None:
    lines = read_plan(run)
    seen = set()
    for step in range(STEPS):
        groups = groups_of(run, step)
        assert [len(members) for members in groups] == [SIZE] * len(groups)
        assert sum(map(differ, groups)) == WANTED
        trained = {row.trajectory for row in lines[step].rows}
        assert trained == {item.id for members in groups if differ(members) for item in members}
        buckets = lines[step].buckets
        for members in groups:
            wanted = Bucket.TRAINED if differ(members) else Bucket.DEGENERATE
            assert {buckets[item.id] for item in members} == {wanted}
        assert len(groups) > WANTED
        seen |= {members[0].task.id for members in groups}
    assert len(seen) == sum(len(groups_of(run, step)) for step in range(STEPS))


def test_a_round_samples_what_is_missing_and_no_more(run: Path) -> None:
    """The rule in plain loops over the record."""
    for step in range(STEPS):
        groups = groups_of(run, step)
        known, rounds = WANTED, 1
        while (missing := WANTED - sum(map(differ, groups[:known]))) > 0:
            known, rounds = known + missing, rounds + 1
        assert known == len(groups)
        assert rounds > 1


def test_the_record_is_whole(run: Path) -> None:
    report = audit(run, scores=False)

    assert (report.problems, report.ledger_closed, report.rebuilt) == ((), True, report.records)


def test_rounds_are_limited_and_then_the_update_takes_what_there_is(load: Load, tmp_path: Path, run: Path) -> None:
    """Two rounds: the groups are the beginning of those that many rounds sampled, under the same first weights."""
    train(sampling_on(load, rounds=2), out=tmp_path / "run", quiet=True)

    many, two = groups_of(run, 0), groups_of(tmp_path / "run", 0)
    assert len(two) == WANTED + (WANTED - sum(map(differ, many[:WANTED])))
    assert [item.task.id for members in two for item in members] == [
        item.task.id for members in many[: len(two)] for item in members
    ]
    trained = {row.trajectory for row in read_plan(tmp_path / "run")[0].rows}
    assert trained == {item.id for members in two if differ(members) for item in members}


@pytest.mark.parametrize("accepted", [5, 40])
def test_a_killed_run_samples_the_same(
    accepted: int, run: Path, kill_and_resume: Callable[..., None], tmp_path: Path
) -> None:
    """Killed with some rollouts on disk: within the first round, and between later ones."""
    kill_and_resume(tmp_path / "run", *settings(rounds=40), crash_at=f"wal.after_fsync#{accepted}")

    assert [(item.id, content_digest(item)) for item in RunReader(tmp_path / "run").trajectories()] == [
        (item.id, content_digest(item)) for item in RunReader(run).trajectories()
    ]
