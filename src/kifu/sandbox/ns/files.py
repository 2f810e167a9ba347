"""Files into a box and out of it, without ever following what is inside. Standard library only.

Both sides walk by descriptors, one name at a time, and refuse symbolic links: a link in a box points into the fork
server's world here, not into the box's.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH118, PTH123

import json
import os
import stat

from kifu.sandbox.globs import matches
from kifu.sandbox.wire import END, FILE, FOLDER, GONE, LINK, entries, entry, write_all

MAX_DEPTH = 128
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """An entry that will not be written, and why."""


def parts_of(path: bytes) -> list[bytes]:
    """Names of a relative path.

    Raises:
        Refused: it is absolute, goes up, has empty or too many names.
    """
    parts = path.split(b"/")
    if len(parts) > MAX_DEPTH or any(part in (b"", b".", b"..") or b"\0" in part for part in parts):
        raise Refused(f"{path[:200]!r} is no plain path below the box")
    return parts


def write_tree(root: str, handle: int, *, careful: bool = True) -> int:
    """Write a stream of entries below ``root``; how many.

    Args:
        root: the folder.
        handle: of the stream.
        careful: refuse paths and links that lead elsewhere. Off for controls of tests alone.
    """
    count = 0
    top = os.open(root, _DIR)
    for kind, mode, path, data in entries(handle):
        if kind == END:
            break
        if careful:
            _place(top, kind, path=path, mode=mode, data=data)
        else:
            _place_carelessly(root, path, data)
        count += 1
    os.close(top)
    return count


def _place(top: int, kind: bytes, *, path: bytes, mode: int, data: bytes) -> None:
    *folders, name = parts_of(path)
    held = [top]
    try:
        for folder in folders:
            held.append(_enter(held[-1], folder, path, may_make=kind != GONE))
        here = held[-1]
        if kind == FOLDER:
            held.append(_enter(here, name, path, may_make=True))
            return
        try:
            os.unlink(name, dir_fd=here)
        except FileNotFoundError:
            if kind == GONE:
                raise Refused(f"{path[:200]!r} is not there to be removed") from None
        except IsADirectoryError:
            raise Refused(f"{path[:200]!r} is a folder in the box") from None
        if kind == FILE:
            out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=here)
            held.append(out)
            write_all(out, data)
            os.fchmod(out, mode & 0o777)
        elif kind == LINK:
            os.symlink(data, name, dir_fd=here)
    finally:
        for handle in held[1:]:
            os.close(handle)


def _enter(parent: int, name: bytes, path: bytes, *, may_make: bool) -> int:
    try:
        return os.open(name, _DIR, dir_fd=parent)
    except FileNotFoundError:
        if not may_make:
            raise Refused(f"{path[:200]!r} is not there to be removed") from None
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _DIR, dir_fd=parent)
    except OSError as error:
        raise Refused(f"{path[:200]!r}: {name!r} is no plain folder in the box ({error.strerror})") from None


def _place_carelessly(root: str, path: bytes, data: bytes) -> None:
    target = os.path.join(os.fsencode(root), path)
    with open(target, "wb") as out:
        out.write(data)


class Reader:
    """Sends what matches, within caps.

    Args:
        out: descriptor the stream goes to.
        request: patterns, max_files, max_bytes, max_visited, with_data.
        careful: never follow a link, read regular files only. Off for controls of tests alone.
    """

    def __init__(self, out: int, request: dict, *, careful: bool = True) -> None:  # type: ignore[type-arg]
        self._out = out
        self._request = request
        self._careful = careful
        self._files = 0
        self._bytes = 0
        self._visited = 0
        self.refused: list[list[str]] = []
        self.refused_count = 0
        self.is_complete = True

    def send(self, root: str) -> None:
        """Walk everything below ``root``, then close the stream with a summary."""
        top = os.open(root, _DIR)
        self._walk(top, "", 0)
        os.close(top)
        summary = {"refused": self.refused, "refused_count": self.refused_count, "is_complete": self.is_complete}
        write_all(self._out, entry(END, b"", data=json.dumps(summary).encode()))

    def _walk(self, folder: int, prefix: str, depth: int) -> None:
        for name in sorted(os.listdir(folder)):
            self._visited += 1
            if self._visited > self._request["max_visited"]:
                self.is_complete = False
                return
            path = prefix + name
            status = os.stat(name, dir_fd=folder, follow_symlinks=not self._careful)
            if stat.S_ISDIR(status.st_mode):
                self._descend(folder, path, depth=depth, name=name)
            elif matches(path, self._request["patterns"]):
                self._take(folder, name, path=path)

    def _descend(self, folder: int, path: str, *, depth: int, name: str) -> None:
        if depth + 1 >= MAX_DEPTH:
            self._refuse(path, "folders nested too deep")
            self.is_complete = False
            return
        below = os.open(name, _DIR if self._careful else os.O_RDONLY, dir_fd=folder)
        self._walk(below, f"{path}/", depth + 1)
        os.close(below)

    def _take(self, folder: int, name: str, *, path: str) -> None:
        if not _is_plain(path):
            self._refuse(path, "the name is not plain UTF-8 text")
            return
        follow = 0 if not self._careful else os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | follow, dir_fd=folder)
        except OSError as error:
            self._refuse(path, f"no regular file ({error.strerror})")
            return
        status = os.fstat(handle)
        if self._careful and not stat.S_ISREG(status.st_mode):
            self._refuse(path, "no regular file")
        elif self._files >= self._request["max_files"]:
            self._refuse(path, f"more than {self._request['max_files']} files")
            self.is_complete = False
        elif self._bytes + status.st_size > self._request["max_bytes"] and self._request["with_data"]:
            self._refuse(path, f"more than {self._request['max_bytes']} bytes")
            self.is_complete = False
        else:
            data = _contents(handle, status.st_size) if self._request["with_data"] else str(status.st_size).encode()
            self._files += 1
            self._bytes += len(data)
            write_all(self._out, entry(FILE, path.encode(), mode=status.st_mode & 0o777, data=data))
        os.close(handle)

    def _refuse(self, path: str, why: str) -> None:
        self.refused_count += 1
        if len(self.refused) < 100:
            self.refused.append([os.fsencode(path)[:200].decode("utf-8", "backslashreplace"), why])


def _is_plain(path: str) -> bool:
    try:
        return path.encode("utf-8").decode().isprintable()
    except UnicodeError:
        return False


def _contents(handle: int, size: int) -> bytes:
    """At most ``size`` bytes, whatever else the file has become meanwhile."""
    parts = []
    while size > 0:
        part = os.read(handle, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
