"""The auxiliary next-observation loss in an update: which tokens, over what, and what the plan says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.batching import pack_rows
from kifu.credit.reading import RewardRules
from kifu.records import Group, Origin, Purpose, TaskRef, Trajectory
from kifu.records.audit import audit_run
from kifu.records.plan import read_plan
from kifu.records.reader import RunReader
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train
from kifu.training.update.assemble import Assembled, assemble

Make = Callable[..., Trajectory]
Load = Callable[..., Loaded]


def put(members: list[Trajectory], *, observes: bool, algorithm: str = "grpo") -> Assembled:
    group = Group(task=TaskRef(id="t"), members=tuple(members))
    return assemble(
        [group],
        algorithm=build_algorithm(algorithm),
        rules=RewardRules(),
        version=0,
        max_age=0,
        observes=observes,
    )


def test_answers_of_the_environment_on_trained_tapes_weigh_one_over_their_number(make_record: Make) -> None:
    """Answers of 2 tokens after every turn but the last: 4 in the first record, 2 in the second, none in the third."""
    members = [
        make_record([1, 2, 1], reward=1.0),
        make_record([2, 1], reward=0.0, member=1),
        make_record([3], reward=0.0, member=2),
    ]

    found, plain = put(members, observes=True), put(members, observes=False)

    assert found.denominators.observed == 6
    assert [None if row.observed_positions is None else row.observed_positions.tolist() for row in found.rows] == [
        [4, 5, 8, 9],
        [5, 6],
        None,
    ]
    for row in found.rows[:2]:
        assert row.observed_weights is not None
        assert row.observed_weights.tolist() == [1 / 6] * row.observed_weights.size
        assert row.observed_positions is not None
        assert row.token_ids[row.observed_positions].tolist() == [9] * row.observed_weights.size
    for row, other in zip(found.rows, plain.rows, strict=True):
        assert row.weights.tolist() == other.weights.tolist()
        assert row.positions.tolist() == other.positions.tolist()
        assert other.observed_positions is None


def test_groups_that_are_left_out_are_not_predicted(make_record: Make) -> None:
    members = [make_record([1, 1], reward=1.0, member=at) for at in range(2)]

    assert put(members, observes=True).denominators.observed == 0


def test_shared_prefixes_are_forwarded_once_and_predicted_for_both(make_record: Make) -> None:
    members = [make_record([1, 2], reward=1.0), make_record([1, 2], reward=0.0, member=1)]
    rows = put(members, observes=True).rows

    [batch] = pack_rows(rows, max_nodes=64, layout="tree")

    assert sum(tree.token_ids.size for tree in batch.trees) < sum(row.token_ids.size for row in rows)
    assert batch.observations is not None
    assert batch.observations.weights.tolist() == [0.25] * 4
    assert np.unique(batch.observations.nodes).size == 2


@pytest.fixture
def run(load: Load, tmp_path: Path) -> Path:
    train(
        load("update.observation_loss=0.5", "update.steps=6", "update.optimizer.learning_rate=0.02"),
        out=tmp_path / "run",
        quiet=True,
    )
    return tmp_path / "run"


def test_a_run_learns_to_predict_and_its_plan_says_what(run: Path) -> None:
    records = {item.id: item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.TRAIN}
    lines: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    for line in read_plan(run)[:-1]:
        count = 0
        for row in line.rows:
            spans = [span for span in records[row.trajectory].tapes[0].spans if span.origin is Origin.ENVIRONMENT]
            planned = sum(part.stop - part.start for part in row.observed)
            assert planned == sum(len(span) for span in spans)
            count += planned
        assert line.denominators["observed"] == count > 0
        assert {part.weight for row in line.rows for part in row.observed} == {1 / count}
    per_token = [line["objective/observation_nll_sum"] / line["objective/observation_tokens"] for line in lines]
    assert per_token[-1] < 0.9 * per_token[0]
    assert lines[0]["objective/loss_observation"] == pytest.approx(0.5 * per_token[0], rel=1e-4)
    assert audit_run(run).problems == ()


def test_without_the_option_nothing_is_predicted(load: Load, tmp_path: Path) -> None:
    train(load("update.steps=1"), out=tmp_path / "run", quiet=True)

    [line, _] = read_plan(tmp_path / "run")
    assert "observed" not in line.denominators
    assert all(not row.observed for row in line.rows)
    assert "loss_observation" not in (tmp_path / "run" / "metrics.jsonl").read_text()
