"""A run folder with hand-made records and hostile text wherever a stranger can put some."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kifu.dashboard.reading import RunView, read_run
from kifu.monitor import MetricsWriter, RunFolder, StepMetrics, write_json
from kifu.records import (
    Action,
    Bucket,
    EnvironmentRef,
    Ledger,
    Origin,
    Outcome,
    PlanLine,
    PlanLog,
    PlanRow,
    Provenance,
    Purpose,
    RolloutKey,
    Run,
    RunStore,
    Sampling,
    Span,
    StopReason,
    Tape,
    TaskRef,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
    as_floats,
    as_ints,
    content_digest,
)

HOSTILE = '<script>alert(1)</script>" onmouseover="alert(2)\x1b[31m\u202e]]>--><img src=x onerror=alert(3)>\''


def record(member: int, *, step: int = 0, turns: int = 2, wins: bool = True, evaluated: bool = False) -> Trajectory:
    """``turns`` turns of one sampled token, an observation between them."""
    spans = [Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([2]))]
    made = []
    for index in range(turns):
        start = sum(len(span) for span in spans)
        spans.append(
            Span(
                origin=Origin.POLICY,
                turn=index,
                token_ids=as_ints([index % 2]),
                logprobs=as_floats([-0.25 * (index + 1)]),
                policy_version=0,
                sampling=Sampling(),
            )
        )
        if index + 1 < turns:
            spans.append(Span(origin=Origin.ENVIRONMENT, turn=index + 1, token_ids=as_ints([3])))
        call = ToolCall(name="go")
        made.append(
            Turn(
                index=index,
                start=start,
                stop=start + 1,
                text=HOSTILE,
                action=Action(sampled=(call,), executed=(call,)),
                results=(ToolResult(call=0, text=HOSTILE),),
            )
        )
    purpose = Purpose.EVALUATION if evaluated else Purpose.TRAIN
    return Trajectory(
        key=RolloutKey(seed=0, step=step, group=0, member=member, purpose=purpose),
        task=TaskRef(id=f"{HOSTILE}/{step}", family=HOSTILE, split="held_out" if evaluated else "train"),
        environment=EnvironmentRef(id="trap", version="1", seed=0, initial_digest="a", final_digest="b"),
        provenance=Provenance(protocol="0" * 64),
        tapes=(Tape(spans=tuple(spans)),),
        turns=tuple(made),
        outcome=Outcome(reason=StopReason.SUCCESS if wins else StopReason.FAILURE, detail=HOSTILE),
        verdict=Verdict(success=wins, world_state_checks={HOSTILE: wins}, verifier="trap/1"),
    )


def planned(trajectories: Sequence[Trajectory]) -> PlanLine:
    """One step over records of 2 and of 4 turns: every token has weight 1/6, advantages are +1 and -2."""
    rows = []
    for item, advantage in zip(trajectories, (1.0, -2.0), strict=True):
        runs = tuple(
            Run(tape=0, start=turn.start, stop=turn.stop, advantage=advantage, weight=1 / 6) for turn in item.turns
        )
        rows.append(PlanRow(trajectory=item.id, digest=content_digest(item), reward=item.reward, runs=runs))
    tokens = sum(item.sampled_tokens for item in trajectories)
    ledger = Ledger(step=0).start(attempts=2, tokens=tokens).close(Bucket.TRAINED, attempts=2, tokens=tokens)
    return PlanLine(
        step=0,
        version=0,
        micro_batches=(tuple(item.id for item in trajectories),),
        rows=tuple(rows),
        denominators={"tokens": float(tokens)},
        buckets={item.id: Bucket.TRAINED for item in trajectories},
        ledger=ledger.use(1, tokens=tokens),
    )


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of two training records and four evaluation records."""
    root = tmp_path_factory.mktemp("runs") / "trap"
    folder = RunFolder.create(
        root,
        {
            "name": HOSTILE,
            "seed": 0,
            "kifu": "0",
            "protocol": "0" * 64,
            "machine": {"cpu": HOSTILE},
            "status": HOSTILE,
            "model": None,
            "relative_to": ".",
            "symbols": ["go", "stop", "wall", HOSTILE],
            "experiment": {
                "environment": {"name": HOSTILE},
                "policy": {"engine": "recurrent", "kind": HOSTILE},
                "credit": {"algorithm": HOSTILE},
            },
            "algorithm_card": {"name": HOSTILE, "notes": [HOSTILE]},
        },
    )
    folder.protocol.write_text("[environment]\nid = 'trap'\nversion = '1'\nreward = '<b>bold</b>'\n")
    trained = [record(0, turns=2), record(1, turns=4, wins=False)]
    evaluated = [record(at, turns=3, wins=at < 3, evaluated=True) for at in range(4)]
    with RunStore(root) as store:
        for item in (*trained, *evaluated):
            store.accept(item).result()
        store.seal(0)
    plan = PlanLog(root)
    plan.append(planned(trained))
    plan.close()
    writer = MetricsWriter(folder.metrics)
    writer.write(
        StepMetrics(
            step=0,
            seconds=2.0,
            cpu_seconds=3.0,
            success=0.5,
            ledger={"trained": 2, "closed": True},
            extra={"rollouts": 2, "rollouts_per_second": 4.0, "sampled_tokens": 6, "success_per_rollout": 0.5},
        )
    )
    writer.close()
    problem = {"part": HOSTILE, "trajectory": HOSTILE, "what": HOSTILE}
    write_json(root / "audit.json", {"records": 6, "rebuilt": 5, "problems": [problem], "ledger_closed": True})
    return root


@pytest.fixture(scope="module")
def run(trap: Path) -> RunView:
    """The hand-made run, read."""
    return read_run(trap)


@pytest.fixture(scope="session")
def hostile() -> str:
    """The text a stranger put wherever possible."""
    return HOSTILE
