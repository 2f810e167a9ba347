"""An audit names every change of a run folder, and rebuilds the rest."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from kifu.records import (
    AuditReport,
    Bucket,
    EnvironmentRef,
    Floats,
    Heads,
    Ledger,
    Origin,
    PlanLine,
    PlanLog,
    PlanRow,
    Replayed,
    Run,
    RunStore,
    Trajectory,
    WeightStore,
    as_floats,
    audit_run,
    content_digest,
    placed_spans,
)

Make = Callable[..., Trajectory]


@pytest.fixture
def run(make: Make, tmp_path: Path) -> tuple[Path, Heads]:
    """Two sealed steps with plan and weights, and a third step's record in the log."""
    weights, plan = WeightStore(tmp_path / "weights"), PlanLog(tmp_path)
    with RunStore(tmp_path) as store:
        for step in range(2):
            weights.put(step, {"w": np.full(100, step, np.float32)})
            trajectory = make(step=step)
            store.accept(trajectory).result()
            plan.append(plan_line(trajectory))
            store.seal(step)
        store.accept(make(step=2)).result()
        heads = Heads(manifest=store.head, plan=plan.head, versions=weights.head)
    return tmp_path, heads


def plan_line(trajectory: Trajectory) -> PlanLine:
    step = trajectory.key.step
    ledger = Ledger(step=step).start(attempts=1, tokens=3).close(Bucket.TRAINED, attempts=1, tokens=3).use(1, tokens=3)
    runs = (
        Run(tape=0, start=3, stop=5, advantage=1.0, weight=1 / 3),
        Run(tape=1, start=6, stop=7, advantage=1.0, weight=1 / 3),
    )
    return PlanLine(
        step=step,
        version=step,
        micro_batches=((trajectory.id,),),
        rows=(PlanRow(trajectory=trajectory.id, digest=content_digest(trajectory), reward=0.75, runs=runs),),
        buckets={trajectory.id: Bucket.TRAINED},
        ledger=ledger,
    )


def test_an_intact_run_is_rebuilt_whole(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    report = audit_run(folder, heads=heads)
    assert report == AuditReport(records=3, rebuilt=3)
    assert report.ok
    assert report.to_json() == {
        "records": 3,
        "rebuilt": 3,
        "not_rebuildable": [],
        "problems": [],
        "ledger_closed": True,
        "max_logprob_error": None,
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "records/part-00000.parquet",
        "records/part-00001.parquet",
        "records/manifest.jsonl",
        "plan.jsonl",
        "weights/versions.jsonl",
        "weights/v00000.full.zst",
        "weights/v00001.xor.zst",
    ],
)
@pytest.mark.parametrize("where", [0.0, 0.37, 0.99999])
def test_one_flipped_byte_in_any_file_names_the_file(run: tuple[Path, Heads], name: str, where: float) -> None:
    folder, heads = run
    flip(folder / name, int(where * (folder / name).stat().st_size))
    report = audit_run(folder, heads=heads)
    assert not report.ok
    assert name in {problem.part for problem in report.problems}


def test_one_flipped_byte_in_the_log_names_it(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    (log,) = (folder / "wal").iterdir()
    flip(log, 200)
    report = audit_run(folder, heads=heads)
    assert [problem.part for problem in report.problems] == [f"wal/{log.name}"]
    assert (report.records, report.rebuilt) == (2, 2)


def test_a_dropped_part_is_named(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    (folder / "records/part-00000.parquet").unlink()
    found = {problem.part: problem.what for problem in audit_run(folder, heads=heads).problems}
    assert "missing" in found["records/part-00000.parquet"]


def test_swapped_parts_are_both_named(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    first, second = folder / "records/part-00000.parquet", folder / "records/part-00001.parquet"
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    named = {problem.part for problem in audit_run(folder, heads=heads).problems}
    assert {"records/part-00000.parquet", "records/part-00001.parquet"} <= named


@pytest.mark.parametrize("name", ["records/manifest.jsonl", "plan.jsonl", "weights/versions.jsonl"])
def test_a_cut_tail_is_named(run: tuple[Path, Heads], name: str) -> None:
    folder, heads = run
    path = folder / name
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    found = [problem.what for problem in audit_run(folder, heads=heads).problems if problem.part == name]
    assert len(found) == 1
    assert "lines were cut off or rewritten" in found[0]


def test_a_part_the_manifest_does_not_list_is_named(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    (folder / "records/part-00007.parquet").write_bytes((folder / "records/part-00000.parquet").read_bytes())
    (problem,) = audit_run(folder, heads=heads).problems
    assert (problem.part, problem.what) == ("records/part-00007.parquet", "the manifest does not list this part")


def recorded(trajectories: Sequence[Trajectory]) -> list[list[Floats | None]]:
    return [[item.span.logprobs for item in placed_spans(one, origin=Origin.POLICY)] for one in trajectories]


def test_recomputed_logprobs_are_compared_token_by_token(run: tuple[Path, Heads]) -> None:
    folder, heads = run
    assert audit_run(folder, heads=heads, score=recorded).max_logprob_error == 0.0

    def off(trajectories: Sequence[Trajectory]) -> list[list[Floats | None]]:
        return [
            [as_floats([-0.5, -0.375]) if one.key.step == 1 else first, last]
            for one in trajectories
            for first, last in recorded([one])
        ]

    report = audit_run(folder, heads=heads, score=off)
    assert report.max_logprob_error == pytest.approx(0.125)
    (problem,) = report.problems
    assert problem.part == "records/part-00001.parquet"
    assert problem.trajectory == "train/s7/t00001/g0000/m000/a0"
    assert "turn 0: a logprob differs by 0.125 nats" in problem.what
    assert (report.records, report.rebuilt) == (3, 2)


def test_a_logprob_that_is_not_a_number_is_a_problem(run: tuple[Path, Heads]) -> None:
    folder, heads = run

    def broken(trajectories: Sequence[Trajectory]) -> list[list[Floats | None]]:
        return [[as_floats([-0.5, -0.25]), as_floats([float("nan")])] for _ in trajectories]

    report = audit_run(folder, heads=heads, score=broken)
    assert len(report.problems) == 3
    assert report.rebuilt == 0


def test_weights_that_are_not_kept_make_a_record_not_rebuildable(make: Make, run: tuple[Path, Heads]) -> None:
    folder, heads = run
    for path in (folder / "weights").iterdir():
        path.unlink()
    WeightStore(folder / "weights").put(0, {"w": np.zeros(1, np.float32)})
    report = audit_run(folder, heads=Heads(manifest=heads.manifest))
    assert {(item.trajectory, item.why) for item in report.not_rebuildable} == {
        (make(step=step).id, "the weights of version 1 are not kept") for step in range(3)
    }
    assert (report.rebuilt, report.ok) == (0, True)

    none = audit_run(folder, score=lambda found: [[None, None] for _ in found])
    assert none.max_logprob_error is None
    assert "logprobs of version 0 cannot be recomputed" in {item.why for item in none.not_rebuildable}


def test_a_record_that_cannot_answer_is_listed_with_the_reason(make: Make, tmp_path: Path) -> None:
    environment = EnvironmentRef(id="e", version="1", seed=0, initial_digest="i")
    with RunStore(tmp_path) as store:
        store.accept(make(environment=environment)).result()
        store.seal(0)
    report = audit_run(tmp_path)
    assert [item.why for item in report.not_rebuildable] == [
        "the final state digest is missing: the environment's snapshot cannot be checked"
    ]
    assert (report.records, report.rebuilt) == (1, 0)


def test_a_replay_that_differs_is_a_problem_and_one_that_cannot_be_done_is_said(run: tuple[Path, Heads]) -> None:
    folder, heads = run

    def replay(trajectory: Trajectory) -> Replayed:
        if trajectory.key.step == 0:
            return Replayed(differences=("observation of turn 0",))
        return Replayed(why_not="not deterministic") if trajectory.key.step == 1 else Replayed()

    report = audit_run(folder, heads=heads, replay=replay)
    assert [problem.what for problem in report.problems] == ["replay: observation of turn 0"]
    assert [item.why for item in report.not_rebuildable] == ["not deterministic"]
    assert report.rebuilt == 1


def test_a_plan_that_is_passed_in_is_used_instead_of_the_file(run: tuple[Path, Heads], make: Make) -> None:
    folder, heads = run
    report = audit_run(folder, heads=heads, plan=[plan_line(make(step=5))])
    assert report.problems[0].what == "plan of step 5: the record is missing"
    assert not report.ok
