"""Boxes that are folders of the host, for the back-ends that have nothing better: copied to branch, walked to read."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from kifu.errors import SandboxFailure
from kifu.sandbox.contract import Denied, Export, Wanted
from kifu.sandbox.ns.files import Reader, Refused, write_tree
from kifu.sandbox.tree import Entry, Tree
from kifu.sandbox.wire import END, entries, write_all


class FolderFiles:
    """A temporary folder and the files of a box in it.

    Args:
        owner: user the files belong to; None for the caller.
    """

    def __init__(self, *, owner: int | None = None) -> None:
        self._owner = owner
        self._outer = Path(tempfile.mkdtemp(prefix="kifu-box-"))
        self._outer.chmod(0o711)
        self.path = self._outer / "box"
        self.path.mkdir(mode=0o700)
        self._own(self.path)

    def copy(self) -> "FolderFiles":
        """A folder of the same contents; takes time in proportion to them."""
        made = FolderFiles(owner=self._owner)
        _must_run(["cp", "-a", "--reflink=auto", f"{self.path}/.", str(made.path)])
        return made

    def write(self, tree: Tree) -> None:
        """As `Box.write`."""
        handle = os.memfd_create("tree", os.MFD_CLOEXEC)
        try:
            for part in tree.stream():
                write_all(handle, part)
            os.lseek(handle, 0, os.SEEK_SET)
            write_tree(str(self.path), handle)
        except Refused as error:
            raise Denied(str(error)) from error
        finally:
            os.close(handle)
        if self._owner is not None:
            _must_run(["chown", "-Rh", f"{self._owner}:{self._owner}", str(self.path)])

    def read(self, wanted: Wanted) -> Export:
        """As `Box.read`."""
        handle = os.memfd_create("tree", os.MFD_CLOEXEC)
        request = {
            "patterns": list(wanted.patterns),
            "max_files": wanted.max_files,
            "max_bytes": wanted.max_bytes,
            "max_visited": wanted.max_visited,
            "with_data": wanted.with_data,
        }
        try:
            Reader(handle, request).send(str(self.path))
            os.lseek(handle, 0, os.SEEK_SET)
            return received(handle)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Delete it, whatever modes and depths are in it; deleting twice is fine."""
        if self._outer.exists():
            _must_run(["chmod", "-R", "u+rwX", str(self._outer)])
            _must_run(["rm", "-rf", "--one-file-system", str(self._outer)])

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner)


def received(handle: int) -> Export:
    """Read what a `Reader` sent."""
    found = []
    summary: dict[str, object] = {}
    for kind, mode, path, data in entries(handle):
        if kind == END:
            summary = json.loads(data)
        else:
            found.append(Entry(path=path.decode(), data=data, is_executable=bool(mode & 0o100)))
    refused = summary["refused"]
    assert isinstance(refused, list)
    return Export(
        tree=Tree(tuple(found)),
        refused=tuple((str(path), str(why)) for path, why in refused),
        refused_count=int(str(summary["refused_count"])),
        is_complete=bool(summary["is_complete"]),
    )


def _must_run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SandboxFailure(f"{argv[0]} on a box's folder failed: {done.stderr.strip()[:300]}")
