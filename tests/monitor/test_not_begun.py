"""What is said of a run that could not begin."""

import errno
from pathlib import Path

import pytest

from kifu.errors import DiskFullError, StorageError
from kifu.monitor import RunFolder, not_begun


def test_a_full_disk_before_the_beginning_offers_no_resume() -> None:
    found = not_begun(Path("out"), OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(found, DiskFullError)
    assert "start again" in str(found)
    assert "resume" not in str(found)


def test_a_folder_that_cannot_be_written_is_named_with_the_reason() -> None:
    found = not_begun(Path("out"), OSError(errno.EROFS, "Read-only file system"))
    assert not isinstance(found, DiskFullError)
    assert str(found).startswith("out: a run cannot begin here: Read-only file system")


def test_a_folder_below_a_file_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="a run cannot begin here: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
