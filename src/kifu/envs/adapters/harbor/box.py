"""A box that looks like Harbor's containers: ``/app``, ``/logs``, ``/tests`` and ``/solution`` are folders of it.

No image is built: a task runs on the programs of this machine, where `needs_image` has nothing against it. Each command
is a process space of its own, so nothing that a command leaves running lives on; ``/tmp`` is fresh in each.
"""

import posixpath
import re
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kifu.errors import UsageError
from kifu.sandbox import (
    DEFAULT_REQUIRED,
    Backend,
    Box,
    BoxPolicy,
    Command,
    Entry,
    Kind,
    Limits,
    Mount,
    NsBackend,
    Ran,
    SandboxUnavailable,
    Tree,
    Wanted,
)

ROOTS = ("app", "logs", "tests", "solution", "installed-agent", "workspace")
"""Folders at the root that last from command to command."""
LOGS = ("logs/agent", "logs/verifier", "logs/artifacts")
LIMITS = Limits(
    wall_s=600.0,
    cpu_s=600,
    mem_total_bytes=2 << 30,
    mem_process_bytes=2 << 30,
    pids=256,
    disk_bytes=512 << 20,
    file_bytes=256 << 20,
    inodes=100_000,
    tmp_bytes=256 << 20,
    output_keep_bytes=1 << 20,
    output_kill_bytes=16 << 20,
)
_MOST = 64 << 20
_lock = threading.Lock()
_backends: dict[tuple[int, tuple[str, ...]], Backend] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a Dockerfile adds that a box can give: a working folder and empty folders."""

    workdir: str = "/app"
    folders: tuple[str, ...] = ()


def image_of(dockerfile: str) -> Image:
    """Working folder and folders of a Dockerfile; other lines are not looked at, see `needs_image`."""
    workdir, folders = "/app", []
    for line in dockerfile.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "WORKDIR" and rest.strip():
            workdir = posixpath.normpath(posixpath.join(workdir, rest.strip()))
        made = re.fullmatch(r"RUN\s+mkdir\s+(?:-p\s+)?(\S+)", line.strip(), re.IGNORECASE)
        if made:
            folders.append(posixpath.normpath(posixpath.join(workdir, made[1])))
    return Image(workdir=workdir, folders=tuple(folders))


def below(path: str) -> str:
    """Where a path of a container stands below the box; empty for its root.

    Raises:
        UsageError: it is not below one of the folders that last.

    >>> below("/app/src/a.py"), below("/logs/verifier/")
    ('app/src/a.py', 'logs/verifier')
    """
    plain = posixpath.normpath(path)
    plain = plain.removeprefix("/box/") if plain.startswith("/box/") else plain.lstrip("/")
    if not path.startswith("/") or plain.split("/")[0] not in ROOTS or ".." in plain.split("/"):
        raise UsageError(
            f"harbor box: path {path[:200]!r}, expected one below /{', /'.join(ROOTS)}: nothing else lasts"
        )
    return plain


class HarborBox:
    """One container's stand-in. One command at a time.

    Args:
        image: of the task.
        files: put in at the start, by path below the box.
        limits: of every command; disk of all together.
        tests: folder of this machine shown read-only as ``/tests``, for a judge; None: ``/tests`` belongs to the box.
        slot: user of its processes; give judges another than agents.
    """

    def __init__(
        self,
        *,
        image: Image | None = None,
        files: Tree | None = None,
        limits: Limits = LIMITS,
        tests: str | None = None,
        slot: int = 3,
    ) -> None:
        self.image = image or Image()
        self._limits = limits
        self._lock = threading.Lock()
        roots = tuple(root for root in ROOTS if tests is None or root != "tests")
        backend = _backend(slot, roots)
        folders = {*roots, *LOGS, *(below(path) for path in (self.image.workdir, *self.image.folders))}
        empty = [Entry(path=path, kind=Kind.FOLDER) for path in sorted(folders)]
        mounts = () if tests is None else (Mount(source=tests, target="/tests"),)
        proof = backend.prove()
        if proof.missing(DEFAULT_REQUIRED) or proof.problem:
            raise SandboxUnavailable([proof], DEFAULT_REQUIRED)
        self._box: Box = backend.open(BoxPolicy(base=Tree(tuple(empty)), limits=limits, mounts=mounts))
        if files is not None:
            self._box.write(files)

    def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a shell command to its end.

        Args:
            command: for ``bash -c``.
            cwd: folder of the container; the image's when None.
            env: added; nothing of this machine's environment is there.
            timeout_s: seconds it may take.

        Raises:
            SandboxFailure: the box broke.
        """
        text = f"cd {shlex.quote(cwd or self.image.workdir)} && {{ {command}\n}}"
        limits = self._limits if timeout_s is None else replace(self._limits, wall_s=max(0.001, timeout_s))
        given = {"HOME": "/tmp", **(env or {})}
        with self._lock:
            return self._box.run(Command(argv=("/bin/bash", "-c", text), env=tuple(given.items()), limits=limits))

    def put(self, folder: str, tree: Tree) -> None:
        """Write files below a folder of the container.

        Raises:
            UsageError: the folder does not last.
            Denied: a path meets a link in the box.
        """
        root = below(folder)
        moved = [replace(item, path=f"{root}/{item.path}") for item in tree.entries]
        with self._lock:
            self._box.write(Tree(tuple(moved)))

    def take(self, folder: str, *, max_bytes: int = _MOST) -> Tree:
        """Regular files below a folder of the container, by path below it. Nothing is followed.

        Raises:
            UsageError: the folder does not last, or holds more than is taken.
        """
        root = below(folder)
        escaped = re.sub(r"([*?\[])", r"[\1]", root)
        with self._lock:
            found = self._box.read(Wanted(patterns=(f"{escaped}/**",), max_files=20_000, max_bytes=max_bytes))
        if not found.is_complete:
            raise UsageError(f"harbor box: {folder} holds more than 20,000 files or {max_bytes:,} bytes")
        files = [item for item in found.tree.entries if item.kind is Kind.FILE]
        return Tree(tuple(replace(item, path=item.path.removeprefix(f"{root}/")) for item in files))

    def take_file(self, path: str, *, max_bytes: int = _MOST) -> bytes | None:
        """Content of one regular file; None where there is none of that name."""
        plain = below(path)
        escaped = re.sub(r"([*?\[])", r"[\1]", plain)
        with self._lock:
            found = self._box.read(Wanted(patterns=(escaped,), max_files=1, max_bytes=max_bytes))
        return found.tree.files.get(plain)

    def close(self) -> None:
        """Give it up; closing twice is fine."""
        self._box.close()


def close_backends() -> None:
    """End the fork servers of all boxes of this process."""
    with _lock:
        for backend in _backends.values():
            backend.close()
        _backends.clear()


def _backend(slot: int, roots: tuple[str, ...]) -> Backend:
    with _lock:
        key = (slot, roots)
        if key not in _backends:
            _backends[key] = NsBackend(slot=slot, links={root: root for root in roots})
        return _backends[key]
