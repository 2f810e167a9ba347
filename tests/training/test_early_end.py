"""An episode that the policy ends early is an outcome of the task, and a negative one is credited like any other."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.records import Purpose, StopReason, read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import Loaded
from kifu.training.inspection.audit import audit
from kifu.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, load: Callable[..., Loaded]) -> Path:
    """Groups of 8 by leave-one-out, where giving up is worth a quarter less than nothing."""
    out = tmp_path_factory.mktemp("early") / "run"
    overrides = (
        "environment.options={ early_end = -0.25 }",
        "environment.on_truncation='exclude'",
        "credit.algorithm='rloo'",
        "credit.options={}",
        "credit.gamma=1.0",
        "update.group_size=8",
    )
    train(load(*overrides), out=out, quiet=True)
    return out


def test_ends_are_paid_as_outcomes_and_credited_against_the_others_of_the_group(run: Path) -> None:
    """Leave-one-out by hand: the reward minus the mean of the other seven."""
    worth = {StopReason.SUCCESS: 1.0, StopReason.FAILURE: -0.25, StopReason.TASK_BUDGET: 0.0}
    records = [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN]
    groups = defaultdict(list)
    for item in records:
        groups[item.key.step, item.key.group].append(item)
    credited = {row.trajectory: row for line in read_plan(run) for row in line.rows}

    early = [item for item in records if item.outcome.reason is StopReason.FAILURE]
    assert early
    assert min(len(item.turns) for item in early) == 1
    assert not any(item.outcome.infra_error for item in early)
    assert len({item.reward for item in records}) == 3
    for members in groups.values():
        rewards = [worth[item.outcome.reason] for item in members]
        assert [item.reward for item in members] == rewards
        for item, reward in zip(members, rewards, strict=True):
            expected = reward - (sum(rewards) - reward) / 7
            found = [part.advantage for part in credited[item.id].runs] if len(set(rewards)) > 1 else [0.0]
            assert found == [pytest.approx(expected)] * len(found)


def test_the_run_is_rebuilt_and_replayed_from_its_folder(run: Path) -> None:
    """The option stands in the protocol, so that its environment is made again as it was."""
    assert audit(run, replay=True).problems == ()
