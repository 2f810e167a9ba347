"""Plan lines come back as written and refuse what cannot be a batch."""

import json
from pathlib import Path

import pytest

from kifu.errors import AlteredError, FormatError, RecordError
from kifu.records import Bucket, Count, Ledger, PlanLine, PlanLog, PlanRow, Run, ValueTarget, read_plan, runs_of


def line(step: int = 0) -> PlanLine:
    """A step over two trajectories in two micro-batches."""
    ledger = Ledger(step=step).start(attempts=2, tokens=5).close(Bucket.TRAINED, attempts=2, tokens=5)
    return PlanLine(
        step=step,
        version=step,
        head="ab" * 32,
        micro_batches=(("b",), ("a",)),
        rows=(
            PlanRow(
                trajectory="a",
                digest="da",
                reward=1.0,
                runs=(
                    Run(tape=0, start=3, stop=5, advantage=0.1, weight=1 / 3),
                    Run(tape=1, start=7, stop=8, advantage=-1e-17, weight=0.2),
                ),
                values=(ValueTarget(tape=0, position=2, target=0.5, old=0.25, weight=1.0),),
                reference=(-0.5, -0.25, -1.5),
                times_used=2,
            ),
            PlanRow(
                trajectory="b", digest="db", reward=None, runs=(Run(tape=0, start=1, stop=3, advantage=1, weight=1),)
            ),
        ),
        denominators={"tokens": 5},
        buckets={"a": Bucket.TRAINED, "b": Bucket.TRAINED},
        ledger=ledger.use(1, tokens=5).end(in_flight=Count()),
    )


def test_a_line_survives_the_file(tmp_path: Path) -> None:
    log = PlanLog(tmp_path)
    heads = [log.append(line(step)) for step in range(2)]
    log.close()
    assert read_plan(tmp_path, expected_head=heads[0]) == [line(0), line(1)]
    assert PlanLog(tmp_path).head == heads[1]
    first = json.loads((tmp_path / "plan.jsonl").read_text().splitlines()[0])
    assert first["rows"][0]["runs"] == [[0, 3, 5, 0.1, 1 / 3], [1, 7, 8, -1e-17, 0.2]]
    assert first["rows"][0]["tokens"] == 3
    assert line().tokens == 5


def test_an_altered_advantage_is_found(tmp_path: Path) -> None:
    log = PlanLog(tmp_path)
    log.append(line())
    log.close()
    path = tmp_path / "plan.jsonl"
    path.write_text(path.read_text().replace("0.1,", "0.2,", 1))
    with pytest.raises(AlteredError, match=r"plan\.jsonl, line 1"):
        read_plan(tmp_path)


def test_runs_merge_only_neighbours_of_equal_credit() -> None:
    tokens = [(1, 0.5, 1.0), (2, 0.5, 1.0), (3, 0.5, 2.0), (5, 0.5, 2.0), (6, -0.5, 2.0)]
    assert [(run.start, run.stop, run.advantage, run.weight) for run in runs_of(4, tokens)] == [
        (1, 3, 0.5, 1.0),
        (3, 4, 0.5, 2.0),
        (5, 6, 0.5, 2.0),
        (6, 7, -0.5, 2.0),
    ]


def test_what_cannot_be_a_batch_is_refused() -> None:
    row = PlanRow(trajectory="a", digest="d", reward=1.0, runs=())
    with pytest.raises(RecordError, match=r"rows and micro-batches differ in \['b'\]"):
        PlanLine(step=0, version=0, micro_batches=(("a", "b"),), rows=(row,))
    with pytest.raises(RecordError, match="two rows"):
        PlanLine(step=0, version=0, micro_batches=(("a",),), rows=(row, row))
    with pytest.raises(RecordError, match=r"run \[0, 2\)"):
        Run(tape=0, start=0, stop=2, advantage=1.0, weight=1.0)
    with pytest.raises(RecordError, match="advantage nan"):
        Run(tape=0, start=1, stop=2, advantage=float("nan"), weight=1.0)


@pytest.mark.parametrize("change", [{"format": 99}, {"rows": None}, {"buckets": {"a": "lost"}}], ids=str)
def test_lines_of_another_format_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        PlanLine.from_json(line().to_json() | change)
