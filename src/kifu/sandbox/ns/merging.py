"""Several sheets into one that shows the same below whatever lies under them. Standard library only.

What is read is frozen and what is written is nobody else's yet, so that going up by ``..`` is safe, and nothing is held
open but one folder of each. No link is followed. Paths may be as deep and as odd as a box can make them.
"""

# Pathlib would make every process that is forked here larger.
# ruff: noqa: PTH208

import os
import stat
from collections.abc import Iterator

_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = "user.overlay.opaque"
"""On a folder: what lower sheets have under its name does not show."""
_OWN = "user.overlay."
_CHUNK = 1 << 20


def merge(sources: list[str], target: str) -> None:
    """Write what sheets show together into an empty one.

    Args:
        sources: folders, the lowest first.
        target: of the new sheet; its folder ``u`` is filled, ``w`` is used on the way.
    """
    for source in sources:
        _Merging(source, target).run()


class _Merging:
    """One sheet laid over what is there."""

    def __init__(self, source: str, target: str) -> None:
        self._from = os.open(f"{source}/u", _DIR)
        self._to = os.open(f"{target}/u", _DIR)
        self._shared = os.open(f"{target}/w", _DIR)
        self._linked: set[str] = set()

    def run(self) -> None:
        ahead = [os.listdir(self._from)]
        while ahead:
            if ahead[-1]:
                name = ahead[-1].pop()
                if self._lay(name):
                    ahead.append(os.listdir(self._from))
            else:
                ahead.pop()
                _copy_facts(self._from, self._to)
                if ahead:
                    self._from, self._to = _moved(self._from, ".."), _moved(self._to, "..")
        for name in self._linked:
            os.unlink(name, dir_fd=self._shared)
        for handle in (self._from, self._to, self._shared):
            os.close(handle)

    def _lay(self, name: str) -> bool:
        """Lay one entry; whether it is a folder, which is entered then."""
        found = os.stat(name, dir_fd=self._from, follow_symlinks=False)
        before = _mode_of(name, self._to)
        if stat.S_ISDIR(found.st_mode):
            self._enter(name, before)
            return True
        if before is not None:
            _remove(name, self._to, before)
        if found.st_nlink > 1 and not stat.S_ISCHR(found.st_mode):
            self._link(name, found)
        else:
            self._copy(name, found, folder=self._to, new=name)
        return False

    def _enter(self, name: str, before: int | None) -> None:
        source = os.open(name, _DIR, dir_fd=self._from)
        covers = _has(source, _OPAQUE) or (before is not None and not stat.S_ISDIR(before))
        if before is not None and covers:
            _remove(name, self._to, before)
        if before is None or covers:
            os.mkdir(name, 0o700, dir_fd=self._to)
        target = os.open(name, _DIR, dir_fd=self._to)
        if covers:
            os.setxattr(target, _OPAQUE, b"y")
        os.close(self._from)
        os.close(self._to)
        self._from, self._to = source, target

    def _link(self, name: str, found: os.stat_result) -> None:
        """Names of one file stay names of one file."""
        shared = str(found.st_ino)
        if shared not in self._linked:
            self._copy(name, found, folder=self._shared, new=shared)
            self._linked.add(shared)
        os.link(shared, name, src_dir_fd=self._shared, dst_dir_fd=self._to, follow_symlinks=False)

    def _copy(self, name: str, found: os.stat_result, *, folder: int, new: str) -> None:
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=self._from), new, dir_fd=folder)
        elif kind == stat.S_IFREG:
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._from)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(new, flags, 0o600, dir_fd=folder)
            _copy_data(source, target, found.st_size)
            _copy_facts(source, target)
            os.close(source)
            os.close(target)
        else:  # a pipe, a socket, or the mark that a name is gone: a device numbered 0
            os.mknod(new, found.st_mode, found.st_rdev, dir_fd=folder)
            if kind != stat.S_IFCHR:
                os.chmod(new, stat.S_IMODE(found.st_mode), dir_fd=folder)
        if kind != stat.S_IFREG:
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=folder, follow_symlinks=False)


def _copy_data(source: int, target: int, size: int) -> None:
    """Only what is not a hole, so that a file takes no more room than before."""
    os.ftruncate(target, size)
    for start, stop in _extents(source, size):
        at = start
        while at < stop:
            at += os.pwrite(target, os.pread(source, min(_CHUNK, stop - at), at), at)


def _extents(handle: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            at = os.lseek(handle, at, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        stop = os.lseek(handle, at, os.SEEK_HOLE)
        yield at, stop
        at = stop


def _copy_facts(source: int, target: int) -> None:
    """Attributes, mode and times."""
    for name in os.listxattr(source):
        if not name.startswith(_OWN):
            os.setxattr(target, name, os.getxattr(source, name))
    found = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _remove(name: str, folder: int, mode: int) -> None:
    """Delete a name with all that is below it."""
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=folder)
        return
    here = os.open(name, _DIR, dir_fd=folder)
    below: list[str] = []
    while True:
        inner = next(iter(_folders_after_files(here)), None)
        if inner is not None:
            below.append(inner)
            here = _moved(here, inner)
        elif below:
            here = _moved(here, "..")
            os.rmdir(below.pop(), dir_fd=here)
        else:
            break
    os.close(here)
    os.rmdir(name, dir_fd=folder)


def _folders_after_files(folder: int) -> list[str]:
    """Delete what is no folder; names of the folders."""
    found = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            found.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return found


def _moved(folder: int, name: str) -> int:
    found = os.open(name, _DIR, dir_fd=folder)
    os.close(folder)
    return found


def _mode_of(name: str, folder: int) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _has(handle: int, attribute: str) -> bool:
    return attribute in os.listxattr(handle)
