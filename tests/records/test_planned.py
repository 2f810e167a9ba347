"""A plan that does not fit its records is named line by line."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kifu.records import (
    Bucket,
    Count,
    Ledger,
    PlanLine,
    PlanRow,
    Purpose,
    Run,
    Trajectory,
    check_plan,
    content_digest,
)

Make = Callable[..., Trajectory]


def row(trajectory: Trajectory) -> PlanRow:
    """The three sampled tokens of the example record."""
    return PlanRow(
        trajectory=trajectory.id,
        digest=content_digest(trajectory),
        reward=0.75,
        runs=(
            Run(tape=0, start=3, stop=5, advantage=0.5, weight=0.25),
            Run(tape=1, start=6, stop=7, advantage=0.5, weight=0.25),
        ),
    )


def ledger(*, trained: int = 3, evaluated: int = 0) -> Ledger:
    found = Ledger(step=0).start(attempts=1 + evaluated, tokens=3 * (1 + evaluated))
    found = found.close(Bucket.TRAINED, attempts=1, tokens=trained).use(1, tokens=3)
    return found.close(Bucket.EVALUATION, attempts=evaluated, tokens=3 * evaluated)


def line(trajectory: Trajectory, *, changed: PlanRow | None = None, **more: object) -> PlanLine:
    fields: dict[str, object] = {
        "step": 0,
        "version": 0,
        "micro_batches": ((trajectory.id,),),
        "rows": (changed or row(trajectory),),
        "buckets": {trajectory.id: Bucket.TRAINED},
        "ledger": ledger(),
    }
    return PlanLine(**{**fields, **more})  # type: ignore[arg-type]


def whats(plan: list[PlanLine], *records: Trajectory) -> list[str]:
    problems, _ = check_plan(plan, {record.id: record for record in records})
    return [problem.what for problem in problems]


def test_a_plan_that_fits_has_no_problems(make: Make) -> None:
    trajectory = make()
    assert check_plan([line(trajectory)], {trajectory.id: trajectory}) == ([], True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"digest": "f" * 64}, "trained on content ffffffffffff, the record has"),
        ({"reward": 1.0}, "trained on reward 1.0, the record has 0.75"),
        ({"runs": (Run(tape=0, start=3, stop=6, advantage=1.0, weight=1.0),)}, "position 5 of tape 0 was trained"),
        ({"runs": (Run(tape=1, start=3, stop=4, advantage=1.0, weight=1.0),)}, "position 3 of tape 1 was trained"),
        ({"times_used": 0}, "use number 1 is counted as 0"),
    ],
)
def test_a_row_that_differs_from_its_record_is_named(make: Make, change: dict[str, object], what: str) -> None:
    trajectory = make()
    found = whats([line(trajectory, changed=replace(row(trajectory), **change))], trajectory)  # type: ignore[arg-type]
    assert any(what in item for item in found)


def test_a_missing_record_is_named(make: Make) -> None:
    (problem, *_), _ = check_plan([line(make())], {})
    assert (problem.what, problem.trajectory) == ("plan of step 0: the record is missing", make().id)


def test_training_on_a_record_that_failed_the_check_is_named(make: Make) -> None:
    key = replace(make().key, purpose=Purpose.EVALUATION)
    trajectory = make(key=key)
    assert "plan of step 0: should not have been trained on: made for evaluation" in whats(
        [line(trajectory)], trajectory
    )


def test_a_trajectory_has_exactly_one_bucket(make: Make) -> None:
    trajectory = make()
    assert "trained in step 0, but in no bucket" in whats([line(trajectory, buckets={})], trajectory)
    again = line(trajectory, changed=replace(row(trajectory), times_used=2), step=1, version=1, ledger=None)
    assert "closed in step 0 and again in 1" in whats([line(trajectory), again], trajectory)


def test_a_second_use_belongs_to_the_first_bucket(make: Make) -> None:
    trajectory = make()
    books = Ledger(step=1).use(2, tokens=3)
    again = line(
        trajectory, changed=replace(row(trajectory), times_used=2), step=1, version=1, buckets={}, ledger=books
    )
    assert whats([line(trajectory), again], trajectory) == []


@pytest.mark.parametrize(
    ("books", "what"),
    [
        (ledger(evaluated=1), "closed 1 attempts as evaluation, the plan lists 0"),
        (ledger(trained=2), "the ledger does not close"),
        (
            replace(ledger(trained=2), started=Count(attempts=1, tokens=2)),
            "closed 2 sampled tokens as trained, the plan trains 3",
        ),
    ],
)
def test_a_ledger_that_differs_from_the_plan_is_named_and_not_closed(make: Make, books: Ledger, what: str) -> None:
    trajectory = make()
    problems, is_closed = check_plan([line(trajectory, ledger=books)], {trajectory.id: trajectory})
    assert any(what in problem.what for problem in problems)
    assert not is_closed


def test_a_step_opens_with_what_the_one_before_left_in_flight(make: Make) -> None:
    trajectory = make()
    later = PlanLine(
        step=1,
        version=1,
        micro_batches=(),
        rows=(),
        ledger=Ledger(step=1, opening=Count(attempts=1), closing=Count(attempts=1)),
    )
    problems, is_closed = check_plan([line(trajectory), later], {trajectory.id: trajectory})
    assert "the step before closed with" in problems[0].what
    assert not is_closed
