"""A plan line and the rows it was made from say the same."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.batching import pack_rows
from kifu.credit.reading import RewardRules
from kifu.records import Group, TaskRef, Trajectory
from kifu.records.ledger import Ledger
from kifu.records.plan import PlanLine, PlanLog, read_plan
from kifu.training.update.assemble import Assembled, assemble
from kifu.training.update.plan import plan_line

Make = Callable[..., Trajectory]


def line_of(members: list[Trajectory], *, algorithm: str, max_nodes: int = 64) -> tuple[Assembled, PlanLine]:
    groups = [Group(task=TaskRef(id="t"), members=tuple(members))]
    found = assemble(groups, algorithm=build_algorithm(algorithm), rules=RewardRules(gamma=0.9), version=3, max_age=3)
    batches = pack_rows(found.rows, layout="rows", max_nodes=max_nodes)
    return found, plan_line(
        found,
        batches,
        step=4,
        update=1,
        version=3,
        head="h",
        trajectories={item.id: item for item in members},
        digests={item.id: f"digest of {item.id}" for item in members},
        ledger=Ledger(step=4),
        buckets=found.buckets,
    )


def unrolled(line: PlanLine) -> Mapping[str, list[tuple[int, int, float, float]]]:
    """Tape, position, advantage and weight of every token."""
    return {
        row.trajectory: [
            (run.tape, at, run.advantage, run.weight) for run in row.runs for at in range(run.start, run.stop)
        ]
        for row in line.rows
    }


@pytest.mark.parametrize("algorithm", ["grpo", "actor_critic", "ppo", "reinforce"])
def test_a_line_read_back_gives_every_token_of_the_rows(make_record: Make, tmp_path: object, algorithm: str) -> None:
    members = [
        make_record([2, 3, 1], reward=1.0, values=[0.1, 0.2, 0.3]),
        make_record([4], reward=0.0, member=1, values=[0.5]),
    ]
    assembled, line = line_of(members, algorithm=algorithm)

    log = PlanLog(str(tmp_path))
    log.append(line)
    log.close()
    [found] = read_plan(str(tmp_path))

    assert found == line
    assert unrolled(found) == {
        row.trajectory: [
            (row.tape, position, advantage, weight)
            for position, advantage, weight in zip(
                row.positions.tolist(), row.advantages.tolist(), row.weights.tolist(), strict=True
            )
        ]
        for row in assembled.rows
    }
    for row, planned in zip(assembled.rows, found.rows, strict=True):
        if row.value_positions is None or row.value_targets is None:
            assert planned.values == ()
            continue
        assert [item.position for item in planned.values] == row.value_positions.tolist()
        assert [item.target for item in planned.values] == row.value_targets.tolist()
    assert (found.version, found.update, found.head) == (3, 1, "h")
    assert [row.times_used for row in found.rows] == [2, 2]
    assert found.denominators == {"tokens": 10.0, "turns": 4.0, "trajectories": 2.0}


def test_micro_batches_name_the_trajectories_in_the_order_of_the_forwards(make_record: Make) -> None:
    members = [make_record([4, 4], reward=float(at % 2), member=at) for at in range(6)]

    _, line = line_of(members, algorithm="grpo", max_nodes=32)

    assert [name for names in line.micro_batches for name in names] == [item.id for item in members]
    assert len(line.micro_batches) == 3
    assert np.isclose(sum(run.weight * (run.stop - run.start) for row in line.rows for run in row.runs), 1.0)
