"""Whether the batch plan fits the records: every line against the trajectories it names, every ledger against both."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from kifu.errors import LedgerError
from kifu.records.charges import Charge, constrained_reward, cost_by_turn, limits_exceeded
from kifu.records.checks import placed_spans, pre_update_check
from kifu.records.ledger import Bucket, Count, Ledger
from kifu.records.plan import PLAN, PlanLine, PlanRow
from kifu.records.reader import Problem
from kifu.records.rows import content_digest
from kifu.records.tokens import Origin
from kifu.records.trajectory import Trajectory

_TRAINABLE = (Origin.POLICY, Origin.DEMONSTRATION)


def check_plan(
    plan: Sequence[PlanLine], records: Mapping[str, Trajectory], *, stored: Mapping[str, Trajectory] | None = None
) -> tuple[list[Problem], bool]:
    """Compare a plan with the records of its run.

    Args:
        plan: every line, in order.
        records: the run's verified records by id.
        stored: records of other runs that this one learned from; no bucket of this run is theirs.

    Returns:
        The problems, and whether every ledger closes and opens with what the one before left in flight.
    """
    problems: list[Problem] = []
    uses: Counter[str] = Counter()
    buckets: dict[str, int] = {}
    before: Ledger | None = None
    is_closed = True
    stored = stored or {}
    known = {**stored, **records}
    for step, group in groupby(plan, key=lambda line: line.step):
        lines = list(group)
        closed_here = {name for line in lines for name in line.buckets}
        first_uses = ({row.trajectory for line in lines for row in line.rows} & closed_here) - set(uses)
        for line in lines:
            problems += _row_problems(line, known, uses)
            problems += _replacement_problems(line, records, buckets)
        problems += _bucket_problems(lines, buckets, stored)
        for line in lines:
            if line.ledger is None:
                continue
            whats = list(_ledger_problems(line.ledger, before)) + list(_count_problems(line.ledger, lines))
            whats += _token_problems(line.ledger, lines, {name: records.get(name) for name in first_uses})
            is_closed = is_closed and not whats
            problems += [Problem(what=f"step {step}: {what}", part=PLAN) for what in whats]
            before = line.ledger
    return problems, is_closed


def _row_problems(line: PlanLine, records: Mapping[str, Trajectory], uses: Counter[str]) -> Iterator[Problem]:
    for row in line.rows:
        uses[row.trajectory] += 1
        whats = list(_differences(row, records.get(row.trajectory), line.charges))
        if row.times_used < uses[row.trajectory]:
            whats.append(f"use number {uses[row.trajectory]} is counted as {row.times_used}")
        for what in whats:
            yield Problem(what=f"plan of step {line.step}: {what}", part=PLAN, trajectory=row.trajectory)


def _differences(row: PlanRow, trajectory: Trajectory | None, charges: Sequence[Charge]) -> Iterator[str]:
    if trajectory is None:
        yield "the record is missing"
        return
    digest = content_digest(trajectory)
    if digest != row.digest:
        yield f"trained on content {row.digest[:12]}, the record has {digest[:12]}"
    if row.reward != (reward := constrained_reward(trajectory, charges)):
        yield f"trained on reward {row.reward}, the record has {reward}"
    yield from _cost_differences(row, trajectory, charges)
    yield from (f"should not have been trained on: {why}" for why in pre_update_check(trajectory))
    for run in row.runs:
        trainable = _trainable(trajectory, run.tape, _TRAINABLE)
        outside = [at for at in range(run.start, run.stop) if at not in trainable]
        if outside:
            yield f"position {outside[0]} of tape {run.tape} was trained, but nobody sampled or demonstrated it"
    yield from _observed_differences(row, trajectory)


def _cost_differences(row: PlanRow, trajectory: Trajectory, charges: Sequence[Charge]) -> Iterator[str]:
    costs: dict[str, tuple[float, ...]] = {charge.cost: cost_by_turn(trajectory, charge.cost) for charge in charges}
    for name in (*costs, *(name for name in row.costs if name not in costs)):
        if row.costs.get(name) != costs.get(name):
            yield f"charged for {name} {row.costs.get(name)}, the record has {costs.get(name)}"
    over = limits_exceeded(trajectory, charges)
    if row.exceeded != over:
        yield f"counted as over the limits of {[*row.exceeded]}, the record is over those of {[*map(str, over)]}"


def _observed_differences(row: PlanRow, trajectory: Trajectory) -> Iterator[str]:
    for run in row.observed:
        seen = _trainable(trajectory, run.tape, (Origin.ENVIRONMENT,))
        outside = [at for at in range(run.start, run.stop) if at not in seen]
        if outside:
            yield f"position {outside[0]} of tape {run.tape} was predicted, but the environment did not write it"


def _trainable(trajectory: Trajectory, tape: int, origins: tuple[Origin, ...], *, inherited: bool = True) -> set[int]:
    return {
        at
        for placed in placed_spans(trajectory)
        if placed.tape == tape
        and placed.span.origin in origins
        and (inherited or not trajectory.inherits(placed.span.turn))
        for at in range(placed.start, placed.stop)
    }


def _bucket_problems(
    lines: Sequence[PlanLine], known: dict[str, int], stored: Mapping[str, Trajectory]
) -> Iterator[Problem]:
    for line in lines:
        for name in line.buckets:
            if name in known:
                yield Problem(what=f"closed in step {known[name]} and again in {line.step}", part=PLAN, trajectory=name)
            known[name] = line.step
    for line in lines:
        for row in line.rows:
            if row.trajectory not in known and row.trajectory not in stored:
                yield Problem(
                    what=f"trained in step {line.step}, but in no bucket", part=PLAN, trajectory=row.trajectory
                )


def _replacement_problems(
    line: PlanLine, records: Mapping[str, Trajectory], known: Mapping[str, int]
) -> Iterator[Problem]:
    """A record in the place of a rollout: of an earlier step, at the same task."""
    for name, other in line.replaced.items():
        rollout, record = records.get(name), records.get(other)
        if rollout is None or record is None:
            what = f"{other} stands in its place, and one of the two records is missing"
        elif rollout.task.id != record.task.id:
            what = f"{other} stands in its place, an attempt at `{record.task.id}` instead of `{rollout.task.id}`"
        elif known.get(other, line.step) >= line.step:
            what = f"{other} stands in its place, and no earlier step closed it"
        else:
            continue
        yield Problem(what=f"plan of step {line.step}: {what}", part=PLAN, trajectory=name)


def _ledger_problems(ledger: Ledger, before: Ledger | None) -> Iterator[str]:
    try:
        ledger.check()
    except LedgerError as error:
        yield str(error)
    if before is not None and ledger.opening != before.closing:
        yield f"the ledger opens with {ledger.opening}, the step before closed with {before.closing}"


def _count_problems(ledger: Ledger, lines: Sequence[PlanLine]) -> Iterator[str]:
    listed = Counter(bucket for line in lines for bucket in line.buckets.values())
    for bucket in Bucket:
        entered = ledger.closed.get(bucket, Count()).attempts
        if entered != listed[bucket]:
            yield f"the ledger closed {entered} attempts as {bucket}, the plan lists {listed[bucket]}"


def _token_problems(
    ledger: Ledger, lines: Sequence[PlanLine], first_uses: Mapping[str, Trajectory | None]
) -> Iterator[str]:
    """Sampled tokens of attempts that this step closed and used, against those the ledger closed as trained.

    The tokens a branch shares with its parent are the parent's.
    """
    used: set[tuple[str, int, int]] = set()
    for line in lines:
        for row in line.rows:
            trajectory = first_uses.get(row.trajectory)
            for run in row.runs if trajectory is not None else ():
                assert trajectory is not None
                sampled = _trainable(trajectory, run.tape, (Origin.POLICY,), inherited=False)
                used |= {(row.trajectory, run.tape, at) for at in range(run.start, run.stop) if at in sampled}
    entered = ledger.closed.get(Bucket.TRAINED, Count()).tokens
    if entered != len(used):
        yield f"the ledger closed {entered} sampled tokens as trained, the plan trains {len(used)} for the first time"
