"""The oracle is the `tensorboard` package: its reader must see what was written."""

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from kifu.monitor import EventWriter
from kifu.monitor.events import crc32c


def test_crc32c_gives_the_published_check_values() -> None:
    """RFC 3720, appendix B.4, and the common check string."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_tensorboard_reads_the_scalars_back(tmp_path: Path) -> None:
    """Steps beyond one varint byte, tags with slashes, wall time to the quarter second."""
    writer = EventWriter(tmp_path / "events", clock=lambda: 1_700_000_000.25)
    for step in (0, 1, 200, 70_000):
        writer.scalars(step, {"success": step / 100_000, "time/generation_s": 1.5 * step})
    writer.close()

    seen = EventAccumulator(str(tmp_path / "events"))
    seen.Reload()

    assert sorted(seen.Tags()["scalars"]) == ["success", "time/generation_s"]
    assert [(point.step, point.value) for point in seen.Scalars("success")] == [
        (step, pytest.approx(step / 100_000)) for step in (0, 1, 200, 70_000)
    ]
    assert seen.Scalars("time/generation_s")[2].value == 300.0
    assert seen.Scalars("success")[0].wall_time == 1_700_000_000.25


def test_values_beyond_float32_and_non_finite_ones_are_written(tmp_path: Path) -> None:
    """A double that float32 cannot hold becomes an infinity of its sign instead of an error."""
    writer = EventWriter(tmp_path)
    writer.scalars(3, {"huge": -1e300, "nan": math.nan, "name with ünïcode": 1.0})
    writer.close()

    seen = EventAccumulator(str(tmp_path))
    seen.Reload()

    assert seen.Scalars("huge")[0].value == -math.inf
    assert math.isnan(seen.Scalars("nan")[0].value)
    assert seen.Scalars("name with ünïcode")[0].step == 3


def test_a_reader_sees_points_while_the_writer_is_open(tmp_path: Path) -> None:
    """Every write is flushed."""
    writer = EventWriter(tmp_path)
    writer.scalars(0, {"success": 0.5})

    seen = EventAccumulator(str(tmp_path))
    seen.Reload()
    writer.close()

    assert [point.value for point in seen.Scalars("success")] == [0.5]
