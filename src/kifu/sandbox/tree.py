"""Files as a value: what goes into a box and what comes out of it."""

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Self

from kifu.errors import ArgumentError
from kifu.sandbox.wire import END, FILE, FOLDER, GONE, LINK, entry

MAX_PATH, MAX_DEPTH = 4096, 128


class Kind(StrEnum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    """A symbolic link; its data is the target, which is never followed on the way in or out."""
    GONE = "gone"
    """A file to remove."""


_WIRE = {Kind.FILE: FILE, Kind.FOLDER: FOLDER, Kind.LINK: LINK, Kind.GONE: GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, folder, link or removal."""

    path: str
    """Relative, plain: no empty name, no ``.``, no ``..``."""
    kind: Kind = Kind.FILE
    data: bytes = b""
    is_executable: bool = False

    def __post_init__(self) -> None:
        problem = path_problem(self.path)
        if problem:
            raise ArgumentError(f"file {self.path[:200]!r}: {problem}; expected a plain relative path")
        if self.kind in (Kind.FOLDER, Kind.GONE) and self.data:
            raise ArgumentError(f"file {self.path!r}: a {self.kind} holds no data")
        if self.kind is Kind.LINK and (not self.data or b"\0" in self.data):
            raise ArgumentError(f"file {self.path!r}: a link needs a target")


@dataclass(frozen=True)
class Tree:
    """Entries by path, in order of their paths. Equal trees have equal digests."""

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=lambda item: item.path)))
        files: set[str] = set()
        for item in self.entries:
            if item.path in files:
                raise ArgumentError(f"file {item.path!r} stands twice in one tree")
            files.add(item.path)

    @classmethod
    def of(cls, files: Mapping[str, str | bytes]) -> Self:
        """Regular files from their contents."""
        contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        return cls(tuple(Entry(path=path, data=data) for path, data in contents.items()))

    @classmethod
    def from_folder(cls, folder: Path, *, max_files: int = 100_000, max_bytes: int = 1 << 30) -> Self:
        """Read a folder of the host: regular files, folders, and links as links.

        Raises:
            ArgumentError: more than the caps, or something that is neither.
        """
        found: list[Entry] = []
        size = 0
        for path, status in _walk(folder):
            relative = path.relative_to(folder).as_posix()
            if stat.S_ISLNK(status.st_mode):
                item = Entry(path=relative, kind=Kind.LINK, data=os.fsencode(path.readlink()))
            elif stat.S_ISDIR(status.st_mode):
                item = Entry(path=relative, kind=Kind.FOLDER)
            elif stat.S_ISREG(status.st_mode):
                size += status.st_size
                if size > max_bytes:
                    raise ArgumentError(f"{folder}: more than {max_bytes} bytes")
                item = Entry(path=relative, data=path.read_bytes(), is_executable=bool(status.st_mode & 0o100))
            else:
                raise ArgumentError(f"{path}: neither a regular file nor a folder nor a link")
            found.append(item)
            if len(found) > max_files:
                raise ArgumentError(f"{folder}: more than {max_files} files")
        return cls(tuple(found))

    @classmethod
    def from_archive(cls, data: bytes, *, max_files: int = 20_000, max_bytes: int = 256 << 20) -> Self:
        """Read a tar (plain, gzip, bzip2, xz) or zip archive that nobody has looked at.

        Devices, hard links, absolute names, names that go up and links that lead out of the archive are refused; so is
        an archive that would unpack to more than the caps.

        Raises:
            ArgumentError: any of these, or no archive at all.
        """
        try:
            if zipfile.is_zipfile(io.BytesIO(data)):
                found = _from_zip(data, max_files=max_files, max_bytes=max_bytes)
            else:
                found = _from_tar(data, max_files=max_files, max_bytes=max_bytes)
            return cls(tuple(found))
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
            raise ArgumentError(f"archive of {len(data)} bytes: {type(error).__name__}: {error}") from error

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Contents of the regular files by path."""
        return {item.path: item.data for item in self.entries if item.kind is Kind.FILE}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of kinds, paths, execute bits and contents."""
        total = hashlib.sha256()
        for item in self.entries:
            content = hashlib.sha256(item.data).digest()
            name = item.path.encode("utf-8", "surrogateescape")
            total.update(f"{item.kind} {int(item.is_executable)} {len(name)} ".encode() + name + content)
        return total.hexdigest()

    @cached_property
    def size_bytes(self) -> int:
        """Of all contents."""
        return sum(len(item.data) for item in self.entries)

    def stream(self) -> Iterator[bytes]:
        """As it crosses to a fork server."""
        for item in self.entries:
            mode = 0o755 if item.is_executable else 0o644
            yield entry(_WIRE[item.kind], item.path.encode("utf-8", "surrogateescape"), mode=mode, data=item.data)
        yield entry(END, b"")


def path_problem(path: str) -> str:
    """What is wrong with a path below a box; empty when nothing is.

    >>> path_problem("src/a.py"), path_problem("../a"), path_problem("/etc/passwd")
    ('', 'it goes up', 'it is absolute')
    """
    parts = path.split("/")
    if path.startswith("/"):
        return "it is absolute"
    if ".." in parts:
        return "it goes up"
    if any(part in ("", ".") for part in parts):
        return "it has an empty name"
    if "\0" in path:
        return "it holds a null character"
    if len(parts) > MAX_DEPTH or len(path) > MAX_PATH or any(len(os.fsencode(part)) > 255 for part in parts):
        return "it is too long or too deep"
    return ""


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path)


def _from_tar(data: bytes, *, max_files: int, max_bytes: int) -> Iterator[Entry]:
    room = max_bytes
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for count, member in enumerate(archive):
            if count >= max_files:
                raise ArgumentError(f"archive: more than {max_files} files")
            name = member.name.removeprefix("./").rstrip("/")
            if name in ("", "."):
                continue
            if member.isdir():
                yield Entry(path=name, kind=Kind.FOLDER)
            elif member.issym():
                yield _link(name, member.linkname)
            elif member.isreg():
                room -= member.size
                if room < 0:
                    raise ArgumentError(f"archive: unpacks to more than {max_bytes} bytes")
                source = archive.extractfile(member)
                content = source.read() if source else b""
                yield Entry(path=name, data=content, is_executable=bool(member.mode & 0o100))
            else:
                raise ArgumentError(f"archive: {name[:200]!r} is a hard link or a device; expected files and folders")


def _from_zip(data: bytes, *, max_files: int, max_bytes: int) -> Iterator[Entry]:
    room = max_bytes
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > max_files:
            raise ArgumentError(f"archive: more than {max_files} files")
        for member in members:
            mode = member.external_attr >> 16
            if member.is_dir():
                yield Entry(path=member.filename.rstrip("/"), kind=Kind.FOLDER)
                continue
            with archive.open(member) as source:
                content = source.read(room + 1)
            room -= len(content)
            if room < 0:
                raise ArgumentError(f"archive: unpacks to more than {max_bytes} bytes")
            if stat.S_ISLNK(mode):
                yield _link(member.filename, os.fsdecode(content))
            else:
                yield Entry(path=member.filename, data=content, is_executable=bool(mode & 0o100))


def _link(name: str, target: str) -> Entry:
    """A link that stays within the archive, however its folders are read."""
    depth = name.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if target.startswith("/") or depth < 0:
            raise ArgumentError(f"archive: the link {name[:200]!r} leads out to {target[:200]!r}")
    return Entry(path=name, kind=Kind.LINK, data=os.fsencode(target))
