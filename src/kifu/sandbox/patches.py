"""Unified diffs, read and applied as data: no program is run on them and no path of theirs is trusted."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kifu.sandbox.contract import Denied
from kifu.sandbox.tree import Entry, Kind, Tree, path_problem

MAX_FILES = 500
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """Lines to find and lines to put in their place."""

    start: int
    """1-based line of the old file where it should begin."""
    old: tuple[str, ...]
    new: tuple[str, ...]
    """Lines with their line ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """Changes of one file."""

    old: str | None
    """Path before; None for a new file."""
    new: str | None
    """Path after; None for one that is removed."""
    hunks: tuple[Hunk, ...]
    is_executable: bool | None = None
    """None leaves the bit as it is."""


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """Read a unified diff, plain or as git writes it.

    Raises:
        Denied: it is none, it changes too many files, a path leads out of the box or into ``.git``, or it holds binary
            changes or links.
    """
    lines = text.splitlines(keepends=True)
    found: list[FilePatch] = []
    place = 0
    while place < len(lines):
        if lines[place].startswith("diff --git "):
            patch, place = _read_git(lines, place)
            found.append(patch)
        elif lines[place].startswith("--- ") and place + 1 < len(lines) and lines[place + 1].startswith("+++ "):
            old, new = _path(lines[place][4:]), _path(lines[place + 1][4:])
            hunks, place = _read_hunks(lines, place + 2)
            found.append(FilePatch(old=old, new=new, hunks=hunks))
        else:
            place += 1
        if len(found) > MAX_FILES:
            raise Denied(f"patch: more than {MAX_FILES} files")
    if not found:
        raise Denied("patch: no file is changed; expected a unified diff with lines `--- a/name` and `+++ b/name`")
    return tuple(found)


def patched(patches: tuple[FilePatch, ...], read: Callable[[list[str]], Tree]) -> Tree:
    """What to write so that the patches are applied.

    Args:
        patches: of a diff; every hunk's lines must be found exactly, near where it says.
        read: gives the present files of the paths it is asked for.

    Raises:
        Denied: one does not apply; then nothing is to be written.
    """
    present = {item.path: item for item in read(sorted({p.old for p in patches if p.old})).entries}
    result: dict[str, Entry] = {}
    for patch in patches:
        before = _before(patch, present, result)
        if patch.old and patch.old != patch.new:
            result[patch.old] = Entry(path=patch.old, kind=Kind.GONE)
        if patch.new is None:
            _apply(patch, before)
            continue
        is_executable = before.is_executable if before and patch.is_executable is None else bool(patch.is_executable)
        data = _apply(patch, before).encode("utf-8", "surrogateescape")
        result[patch.new] = Entry(path=patch.new, data=data, is_executable=is_executable)
    return Tree(tuple(result.values()))


def _before(patch: FilePatch, present: dict[str, Entry], result: dict[str, Entry]) -> Entry | None:
    if patch.old is None:
        return None
    found = result.get(patch.old, present.get(patch.old))
    if found is None or found.kind is not Kind.FILE:
        raise Denied(f"patch: there is no file {patch.old!r} to change")
    return found


def _read_git(lines: list[str], place: int) -> tuple[FilePatch, int]:
    head = lines[place]
    names = re.fullmatch(r"diff --git a/(.*) b/(.*)\n?", head)
    if names is None:
        raise Denied(f"patch: cannot read {head[:200]!r}")
    old, new = _checked(names[1]), _checked(names[2])
    bit: bool | None = None
    place += 1
    old_path: str | None = old
    new_path: str | None = new
    while place < len(lines) and not lines[place].startswith(("diff --git ", "@@ ", "--- ")):
        line = lines[place].rstrip("\n")
        if line.startswith(("new file mode ", "new mode ", "old mode ", "deleted file mode ")):
            mode = line.rsplit(" ", 1)[1]
            if mode not in ("100644", "100755"):
                raise Denied(f"patch: {new!r} has mode {mode}; links and submodules are refused")
            bit = mode == "100755"
        old_path = None if line.startswith("new file mode ") else old_path
        new_path = None if line.startswith("deleted file mode ") else new_path
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise Denied(f"patch: {new!r} is binary")
        place += 1
    if place + 1 < len(lines) and lines[place].startswith("--- ") and lines[place + 1].startswith("+++ "):
        old_path, new_path = _path(lines[place][4:]), _path(lines[place + 1][4:])
        place += 2
    hunks, place = _read_hunks(lines, place)
    return FilePatch(old=old_path, new=new_path, hunks=hunks, is_executable=bit), place


def _path(text: str) -> str | None:
    name = text.rstrip("\r\n").split("\t")[0]
    if name == "/dev/null":
        return None
    return _checked(name[2:] if name.startswith(("a/", "b/")) else name)


def _checked(name: str) -> str:
    problem = path_problem(name)
    if not problem and ".git" in [part.lower() for part in name.split("/")]:
        problem = "it changes what git runs"
    if problem or name.startswith('"'):
        raise Denied(f"patch: path {name[:200]!r}: {problem or 'quoted names are not read'}")
    return name


def _read_hunks(lines: list[str], place: int) -> tuple[tuple[Hunk, ...], int]:
    found = []
    while place < len(lines) and (match := _HUNK.match(lines[place])):
        counts = [int(match[2] or 1), int(match[4] or 1)]
        place += 1
        old: list[str] = []
        new: list[str] = []
        while counts[0] > 0 or counts[1] > 0:
            if place >= len(lines):
                raise Denied("patch: the last hunk ends early")
            mark, rest = lines[place][:1], lines[place][1:]
            if mark in (" ", "-", "\n", "\r"):
                old.append(rest if mark in " -" else lines[place])
                counts[0] -= 1
            if mark in (" ", "+", "\n", "\r"):
                new.append(rest if mark in " +" else lines[place])
                counts[1] -= 1
            if mark not in (" ", "-", "+", "\n", "\r", "\\"):
                raise Denied(f"patch: cannot read {lines[place][:100]!r} in a hunk")
            place += 1
            if place < len(lines) and lines[place].startswith(_NO_NEWLINE):
                _strip_newline(mark, old, new)
                place += 1
        found.append(Hunk(start=int(match[1]), old=tuple(old), new=tuple(new)))
    return tuple(found), place


def _strip_newline(mark: str, old: list[str], new: list[str]) -> None:
    for side, marks in ((old, " -"), (new, " +")):
        if mark in marks and side:
            side[-1] = side[-1].removesuffix("\n")


def _apply(patch: FilePatch, before: Entry | None) -> str:
    text = before.data.decode("utf-8", "surrogateescape") if before else ""
    lines = text.splitlines(keepends=True)
    shift = 0
    for hunk in patch.hunks:
        wanted = max(0, hunk.start - 1) + shift if hunk.old else hunk.start + shift
        at = next((spot for spot in _near(wanted, len(lines)) if _fits(lines, spot, hunk.old)), None)
        if at is None:
            raise Denied(f"patch: {patch.old or patch.new}: the lines around line {hunk.start} are not as it says")
        lines[at : at + len(hunk.old)] = hunk.new
        shift += at - wanted + len(hunk.new) - len(hunk.old)
    return "".join(lines)


def _fits(lines: list[str], spot: int, old: tuple[str, ...]) -> bool:
    return tuple(lines[spot : spot + len(old)]) == old


def _near(wanted: int, count: int) -> Iterator[int]:
    """Places to look, the nearest first."""
    for distance in range(count + 1):
        for spot in {wanted - distance, wanted + distance}:
            if 0 <= spot <= count:
                yield spot
