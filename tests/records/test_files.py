"""Files are wholly there or not there."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kifu.errors import DiskFullError, StorageError
from kifu.records import file_digest, write_atomically
from kifu.records.files import storing


def _half() -> Iterator[bytes]:
    yield b"half"
    raise ZeroDivisionError


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, [b"old"], what="a file")
    with pytest.raises(ZeroDivisionError):
        write_atomically(path, _half(), what="a file")
    assert [item.name for item in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"old"


def test_a_full_disk_has_its_own_error_and_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFullError, match=r"no space left while writing a part.*free space"),
        storing("a part", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StorageError, match="cannot write a part: Input/output error"), storing("a part", tmp_path):
        raise OSError(errno.EIO, "Input/output error")


def test_the_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
