"""A model folder appears whole or not at all."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kifu.errors import DiskFullError, ModelError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def build_folder(target: Path, build: Callable[[Path], None], *, needed_bytes: int) -> None:
    """Fill a temporary folder beside ``target`` and rename it into place; nothing happens if ``target`` exists.

    A lock file makes a second process wait and then find the folder. What an interrupted build left is removed
    by the next one.

    Args:
        target: the folder that shall exist.
        build: fills the folder it is given.
        needed_bytes: room the build takes at its peak, checked before it starts.

    Raises:
        DiskFullError: less room than ``needed_bytes``, or the disk filled up meanwhile.
        ModelError: the place cannot be written.
    """
    with _reported(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
            if target.exists():
                return
            for stale in target.parent.glob(f".{target.name}.part-*"):
                shutil.rmtree(stale)
            free = shutil.disk_usage(target.parent).free
            if free < needed_bytes:
                raise _full(target, f"{free / 1e6:.0f} MB free, {needed_bytes / 1e6:.0f} MB needed")
            part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
            try:
                build(part)
                _flush(part)
                part.chmod(0o755)
                part.rename(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise


@contextmanager
def _reported(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        if cause.errno in _FULL:
            raise _full(target, "the disk filled up") from cause
        raise ModelError(
            f"model folder {target}: cannot be written ({cause}). Choose another with KIFU_CACHE."
        ) from cause


def _full(target: Path, found: str) -> DiskFullError:
    return DiskFullError(
        f"model folder {target}: {found}; nothing was left behind. Free some space or set KIFU_CACHE to a larger disk."
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that programs started meanwhile may share, so that it outlives a killed owner until they end."""
    with path.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flush(folder: Path) -> None:
    """Bring every file to the disk before the rename makes it visible."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
