"""A folder as a value: regular files by relative path, read without following a link and within limits."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kifu.errors import UsageError
from kifu.sandbox.patches import tree_path


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """One regular file."""

    data: bytes
    executable: bool = False

    @property
    def text(self) -> str | None:
        """Its text; None where it is not UTF-8."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """How much of a folder is read."""

    files: int = 5_000
    bytes: int = 64 << 20
    depth: int = 24


def read_tree(folder: Path, *, limits: TreeLimits | None = None) -> dict[str, TreeFile]:
    """Every file below ``folder`` by its path, in order of the paths.

    Raises:
        UsageError: not a folder, beyond the limits, a name that no tree may hold, or something in it that is neither a
            file nor a folder: a link could lead anywhere.
    """
    reader = _Tree(folder, limits or TreeLimits())
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{folder}: is no folder that can be read: {error.strerror}") from None
    try:
        return dict(sorted(reader.walk(handle, "", 0)))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


class _Tree:
    def __init__(self, folder: Path, limits: TreeLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._files = 0
        self._bytes = 0

    def walk(self, handle: int, prefix: str, depth: int) -> Iterator[tuple[str, TreeFile]]:
        """Files below an open folder."""
        if depth > self._limits.depth:
            raise UsageError(f"{self._folder}: {prefix[:100]!r} is deeper than {self._limits.depth} folders")
        for name in sorted(os.listdir(handle)):
            path = tree_path(prefix + name, where=str(self._folder))
            kind = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
                try:
                    yield from self.walk(below, f"{path}/", depth + 1)
                finally:
                    os.close(below)
            elif stat.S_ISREG(kind):
                yield path, self._file(handle, name, path)
            else:
                raise UsageError(f"{self._folder}: {path} is neither a file nor a folder; links are not followed")

    def _file(self, handle: int, name: str, path: str) -> TreeFile:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=handle), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{self._folder}: {path} became something else while it was read")
            room = self._limits.bytes - self._bytes
            data = opened.read(room + 1)
        self._files += 1
        self._bytes += len(data)
        if len(data) > room or self._files > self._limits.files:
            raise UsageError(
                f"{self._folder}: holds more than {self._limits.files:,} files or {self._limits.bytes:,} bytes"
            )
        return TreeFile(data=data, executable=bool(found.st_mode & stat.S_IXUSR))
