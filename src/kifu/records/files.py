"""Writing files so that they are either wholly there or not there, and naming what went wrong."""

import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kifu.errors import DiskFullError, StorageError
from kifu.records.crash import crash_point

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say there is no space."""
_CHUNK = 1 << 20


@contextmanager
def storing(what: str, path: Path) -> Iterator[None]:
    """Turn an operating-system error into a storage error that names the file and what to do."""
    try:
        yield
    except OSError as cause:
        if cause.errno in FULL:
            raise DiskFullError(
                f"{path}: no space left while writing {what}. Everything accepted before is intact; "
                "free space on this device, then repeat the command or `kifu resume` the run."
            ) from cause
        raise StorageError(f"{path}: cannot write {what}: {cause.strerror}") from cause


def fsync_folder(folder: Path) -> None:
    """Make renames and removals inside ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, durable on return."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with storing("a folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            fsync_folder(path.parent)
    return folder


@contextmanager
def replacing(path: Path, *, what: str, crash: str | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` once it is durable; on an error nothing changes.

    Args:
        path: the final name; readers see the old file or the new one, never a part of it.
        what: names the content in messages.
        crash: prefix of the crash points around the rename.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with storing(what, path):
        try:
            with temporary.open("wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            if crash:
                crash_point(f"{crash}.before_rename")
            temporary.replace(path)
            fsync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    if crash:
        crash_point(f"{crash}.after_rename")


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview], *, what: str, crash: str | None = None) -> None:
    """Write a whole file; see `replacing`."""
    with replacing(path, what=what, crash=crash) as handle:
        for chunk in chunks:
            handle.write(chunk)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def sweep_temporaries(folder: Path) -> None:
    """Remove what `replacing` left behind when its process was killed. Only the folder's one writer may do this."""
    for path in folder.glob(".*.tmp"):
        path.unlink()
