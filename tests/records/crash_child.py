"""A small run that can be killed anywhere and started again; it notes what was promised to last.

Reads lines ``folder<TAB>crash point<TAB>file of promises`` and answers each with the exit code of a fresh fork.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kifu.records import (
    EnvironmentRef,
    Origin,
    Outcome,
    PlanLine,
    PlanLog,
    PlanRow,
    Provenance,
    RolloutKey,
    Run,
    RunStore,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    Trajectory,
    Turn,
    Verdict,
    WeightStore,
    as_floats,
    as_ints,
    content_digest,
    read_plan,
    to_table,
)

STEPS, MEMBERS = 3, 2


def record(step: int, member: int) -> Trajectory:
    """The record a deterministic sampler would give."""
    policy = Span(
        origin=Origin.POLICY,
        turn=0,
        token_ids=as_ints([step, member]),
        logprobs=as_floats([-0.5, -0.25]),
        policy_version=step,
        sampling=Sampling(),
    )
    return Trajectory(
        key=RolloutKey(seed=0, step=step, group=0, member=member),
        task=TaskRef(id="t"),
        environment=EnvironmentRef(id="e", version="1", seed=0),
        provenance=Provenance(),
        tapes=(Tape(spans=(Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([9])), policy)),),
        turns=(Turn(index=0, start=1, stop=3),),
        outcome=Outcome(reason=StopReason.SUCCESS),
        verdict=Verdict(success=bool(member)),
    )


def plan_line(step: int, records: list[Trajectory]) -> PlanLine:
    """The batch of a step."""
    run = Run(tape=0, start=1, stop=3, advantage=0.5, weight=0.25)
    rows = tuple(
        PlanRow(trajectory=item.id, digest=content_digest(item), reward=item.reward, runs=(run,)) for item in records
    )
    return PlanLine(step=step, version=step, micro_batches=(tuple(item.id for item in records),), rows=rows)


def main(folder: Path, promise: Callable[[str, object], None]) -> None:
    """Run to the end, from wherever the folder stands."""
    store, weights, plan = RunStore(folder), WeightStore(folder / "weights"), PlanLog(folder)
    planned = {line.step for line in read_plan(folder)}
    for step in range(STEPS):
        records = [record(step, member) for member in range(MEMBERS)]
        for item in (*records, record(step + 1, 0)):
            store.accept(item).result()
            promise("record", item.id)
        if step not in planned:
            plan.append(plan_line(step, records))
        promise("plan", step)
        weights.put(step, {"w": np.full(1000, step, dtype=np.float32)})
        promise("version", step)
        store.seal(step)
        promise("sealed", step)
    store.close()


def serve() -> None:
    """Fork one run per line of the standard input, after everything slow to import was."""
    to_table([record(0, 0)]).to_pylist()
    for line in sys.stdin:
        folder, crash_at, promises = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            os.environ.pop("KIFU_CRASH_AT", None)
            if crash_at:
                os.environ["KIFU_CRASH_AT"] = crash_at
            with Path(promises).open("a") as handle:
                main(Path(folder), lambda kind, name: print(kind, name, file=handle, flush=True))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
