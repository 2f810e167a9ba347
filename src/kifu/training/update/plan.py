"""The batch plan of a step: rows to micro-batches and to the durable lines an outsider re-derives them from."""

from collections.abc import Iterable, Mapping, Sequence

from kifu.batching import PackedBatch, Row
from kifu.records import Floats, RolloutKey, Trajectory
from kifu.records.charges import constrained_reward, cost_by_turn, limits_exceeded
from kifu.records.ledger import Bucket, Ledger
from kifu.records.plan import Allocation, Observed, PlanLine, PlanRow, Run, ValueTarget, runs_of
from kifu.training.update.assemble import Assembled


def plan_line(
    assembled: Assembled,
    batches: Sequence[PackedBatch],
    *,
    step: int,
    update: int,
    version: int,
    head: str,
    trajectories: Mapping[str, Trajectory],
    digests: Mapping[str, str],
    ledger: Ledger | None,
    buckets: Mapping[str, Bucket],
    uses: Mapping[str, int] | None = None,
    allocated: Sequence[Allocation] = (),
) -> PlanLine:
    """One optimizer step as it goes into ``plan.jsonl``.

    Args:
        assembled: the rows.
        batches: the same rows, packed; their order is the order of the forwards.
        step: step of the run.
        update: optimizer step inside it.
        version: version of the weights it starts from.
        head: manifest head when planned.
        trajectories: by id, at least those in the rows.
        digests: content digest by trajectory id.
        ledger: of the step, on its last line.
        buckets: every trajectory the step's ledger closed, on its last line.
        uses: how often a trajectory was used before this step, where it was.
        allocated: where the step's budget of rollouts went, on its first line.
    """
    by_id: dict[str, list[Row]] = {}
    for row in assembled.rows:
        by_id.setdefault(row.trajectory, []).append(row)
    return PlanLine(
        step=step,
        update=update,
        version=version,
        head=head,
        micro_batches=tuple(tuple(dict.fromkeys(batch.trajectories)) for batch in batches),
        rows=tuple(
            PlanRow(
                trajectory=name,
                digest=digests[name],
                reward=constrained_reward(trajectories[name], assembled.charges),
                costs={item.cost.value: cost_by_turn(trajectories[name], item.cost) for item in assembled.charges},
                exceeded=tuple(item.value for item in limits_exceeded(trajectories[name], assembled.charges)),
                runs=tuple(run for row in rows for run in runs_of_row(row)),
                values=tuple(value for row in rows for value in _values(row)),
                reference=tuple(value for row in rows for value in _listed(row.reference_logprobs)),
                present=tuple(value for row in rows for value in row.behaviour_logprobs.tolist())
                if name in assembled.rescored
                else (),
                pair=rows[0].pair,
                model_score=assembled.model_scores.get(name),
                paid=tuple(assembled.paid[name].tolist()) if name in assembled.paid else (),
                observed=tuple(run for row in rows for run in _observed(row)),
                times_used=(uses or {}).get(name, 0) + (update + 1) * assembled.times.get(name, 1),
            )
            for name, rows in by_id.items()
        ),
        denominators={
            "tokens": float(assembled.denominators.tokens),
            "turns": float(assembled.denominators.turns),
            "trajectories": float(assembled.denominators.trajectories),
            **({"observed": float(observed)} if (observed := assembled.denominators.observed) else {}),
        },
        buckets=buckets,
        replaced=assembled.borrowed.replaced,
        allocated=tuple(allocated),
        charges=assembled.charges,
        ledger=ledger,
    )


def closing_line(*, step: int, version: int, head: str, buckets: Mapping[str, Bucket], ledger: Ledger) -> PlanLine:
    """The line after the last step: it trains nothing and enters the last evaluation."""
    return PlanLine(
        step=step,
        version=version,
        head=head,
        micro_batches=(),
        rows=(),
        denominators={"tokens": 0.0, "turns": 0.0, "trajectories": 0.0},
        buckets=dict(buckets),
        ledger=ledger,
    )


def versions_evaluated(lines: Iterable[PlanLine]) -> set[int]:
    """Versions whose evaluation these lines have entered."""
    return {
        RolloutKey.parse(name).step
        for line in lines
        for name, bucket in line.buckets.items()
        if bucket is Bucket.EVALUATION
    }


def runs_of_row(row: Row) -> tuple[Run, ...]:
    """A row as the plan holds it."""
    return runs_of(
        row.tape,
        zip(row.positions.tolist(), row.advantages.tolist(), row.weights.tolist(), strict=True),
    )


def _observed(row: Row) -> tuple[Observed, ...]:
    if row.observed_positions is None or row.observed_weights is None:
        return ()
    found = runs_of(
        row.tape,
        (
            (at, 0.0, weight)
            for at, weight in zip(row.observed_positions.tolist(), row.observed_weights.tolist(), strict=True)
        ),
    )
    return tuple(Observed(tape=run.tape, start=run.start, stop=run.stop, weight=run.weight) for run in found)


def _listed(values: Floats | None) -> list[float]:
    return [] if values is None else [float(value) for value in values]


def _values(row: Row) -> tuple[ValueTarget, ...]:
    if row.value_positions is None:
        return ()
    assert row.value_targets is not None
    assert row.old_values is not None
    assert row.value_weights is not None
    columns = (row.value_positions, row.value_targets, row.old_values, row.value_weights)
    return tuple(
        ValueTarget(tape=row.tape, position=position, target=target, old=old, weight=weight)
        for position, target, old, weight in zip(*(column.tolist() for column in columns), strict=True)
    )
