"""The metrics file: one JSON object per step."""

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from kifu.errors import AlteredError, StorageError, UsageError
from kifu.monitor import EventWriter, MetricsWriter, StepMetrics, read_metrics, undocumented

WHOLE = b'{"step": 0, "seconds": 1, "cpu_seconds": 1}\n'


def _metrics(step: int, **extra: float | int | str | None) -> StepMetrics:
    return StepMetrics(
        step=step, seconds=1.25, cpu_seconds=2.5, success=0.5, ledger={"trained": 8, "closed": True}, extra=extra
    )


def test_every_line_is_an_object_with_the_promised_names(tmp_path: Path) -> None:
    """The five promised names come first, further metrics follow."""
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(_metrics(0, grad_norm=0.25))
    writer.write(_metrics(1))
    writer.close()

    first, second = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    assert first == {
        "step": 0,
        "seconds": 1.25,
        "cpu_seconds": 2.5,
        "success": 0.5,
        "ledger": {"trained": 8, "closed": True},
        "grad_norm": 0.25,
    }
    assert second["step"] == 1


def test_a_number_json_cannot_hold_is_null_and_absent_stays_absent(tmp_path: Path) -> None:
    """A strict JSON parser finds neither NaN nor Infinity."""
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(StepMetrics(step=0, seconds=1, cpu_seconds=1, success=None, ledger={}, extra={"loss": math.nan}))
    writer.close()

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda word: pytest.fail(word))

    assert row["success"] is None
    assert row["loss"] is None


def test_resuming_drops_the_steps_that_run_again_and_a_torn_line(tmp_path: Path) -> None:
    """Four steps and a torn fifth, resumed at step 2: the file holds every step once."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in range(4):
        writer.write(_metrics(step))
    writer.close()
    path.write_bytes(path.read_bytes() + b'{"step": 4, "sec')

    resumed = MetricsWriter(path, resume_at=2)
    resumed.write(_metrics(2, note="again"))
    resumed.close()

    assert [row["step"] for row in read_metrics(path)] == [0, 1, 2]
    assert read_metrics(path)[2]["note"] == "again"


def test_reading_while_a_line_is_being_written_leaves_it_out(tmp_path: Path) -> None:
    """A line counts when its newline is there."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(WHOLE + b'{"step": 1')

    assert read_metrics(path) == [{"step": 0, "seconds": 1, "cpu_seconds": 1}]


def test_numbers_reach_tensorboard_and_text_does_not(tmp_path: Path) -> None:
    """Ledger buckets become their own tags."""
    writer = MetricsWriter(tmp_path / "metrics.jsonl", events=EventWriter(tmp_path / "events"))
    writer.write(_metrics(5, grad_norm=0.25, note="text"))
    writer.close()

    seen = EventAccumulator(str(tmp_path / "events"))
    seen.Reload()

    assert "note" not in seen.Tags()["scalars"]
    assert seen.Scalars("ledger/trained")[0].value == 8.0
    assert (seen.Scalars("grad_norm")[0].step, seen.Scalars("grad_norm")[0].value) == (5, 0.25)


def test_a_field_cannot_be_given_twice() -> None:
    """A metric that would overwrite a field is refused by name."""
    with pytest.raises(UsageError, match="success"):
        _metrics(0, success=1.0)


def test_names_outside_the_table_are_found() -> None:
    """Families admit by prefix with their slash, not by similar words."""
    assert undocumented(["loss", "time/tools_s", "stop/success", "mystery", "timers/x"]) == ["mystery", "timers/x"]


@pytest.mark.parametrize("line", [b"{broken", b"[1, 2]", b'{"seconds": 1}', b"\xff\xfe\x00", b'{"step": true}'])
def test_a_damaged_line_is_named_and_the_file_is_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(WHOLE + line + b"\n")

    with pytest.raises(AlteredError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)
    with pytest.raises(AlteredError, match=r"metrics\.jsonl, line 2"):
        MetricsWriter(path, resume_at=1)

    assert path.read_bytes() == WHOLE + line + b"\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", '""'),
        ("rollouts", "[]"),
        ("time/tools_s", '"1"'),
        ("seconds", "null"),
        ("stage", "1"),
        ("ledger", '{"trained": ""}'),
        ("evaluation/version", "1" + "0" * 400),
    ],
)
def test_a_number_that_is_none_is_named_with_file_line_and_metric(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(WHOLE.decode() + f'{{"step": 1, "seconds": 1, "cpu_seconds": 1, "{name}": {value}}}\n')
    with pytest.raises(AlteredError, match=rf"metrics\.jsonl, line 2: `{name}`: found .*, expected "):
        read_metrics(path)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_a_line_with_what_is_no_number_of_json_is_damaged(tmp_path: Path, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "seconds": 1, "cpu_seconds": 1, "rollouts": {value}}}\n')
    with pytest.raises(AlteredError, match=r"metrics\.jsonl, line 1"):
        read_metrics(path)


def test_a_metric_that_this_version_does_not_know_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "seconds": 1, "cpu_seconds": 1, "of tomorrow": {"a": []}}\n')
    assert read_metrics(path)[0]["of tomorrow"] == {"a": []}


def test_metrics_that_cannot_be_read_are_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the metrics"):
        read_metrics(tmp_path)
