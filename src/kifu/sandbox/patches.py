"""Unified diffs as values: read strictly, applied to texts in memory, turned round. No file is touched, no git runs.

Patches come from data sets and from policies, so both are hostile: a path that leaves its tree or reaches into
``.git``, a link, a submodule, binary content or counts that do not add up are refused when the patch is read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kifu.errors import UsageError
from kifu.sandbox.tree import Entry, Kind, Tree

LIMIT_CHARS = 4_000_000
"""Length of a patch that is read."""
MAX_FILES = 500
"""Files it may change."""
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*", re.ASCII | re.DOTALL)
_HEADER = ("index ", "similarity index ", "dissimilarity index ")
_PLAIN_MODES = ("100644", "100755", "100664")
_NO_NEWLINE = "\\ No newline at end of file"


class PatchError(UsageError):
    """A patch that cannot be read, or does not fit the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One changed place; lines keep their ends."""

    start: int
    """First line of the old text, from 1; for an empty range the line before it."""
    before: tuple[str, ...]
    """Context and removed lines, in order."""
    after: tuple[str, ...]
    """Context and added lines, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What happens to one file."""

    old: str | None
    """Path before; None where the file is made."""
    new: str | None
    """Path after; None where the file is removed."""
    hunks: tuple[Hunk, ...] = ()
    is_executable: bool | None = None
    """None leaves the bit as it is."""

    @property
    def path(self) -> str:
        """The path it is known by: the new one, or the old one of a removed file."""
        return str(self.old if self.new is None else self.new)

    @property
    def paths(self) -> frozenset[str]:
        """Before and after."""
        return frozenset(path for path in (self.old, self.new) if path is not None)


def tree_path(text: str, *, where: str) -> str:
    """A path inside a tree: relative, plain, no ``..``, nothing under ``.git``.

    Raises:
        PatchError: anything else.
    """
    parts = text.split("/")
    odd = any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text) or "\\" in text
    outside = any(part in ("", ".", "..") or part.lower() == ".git" or len(part) > 255 for part in parts)
    if odd or outside or len(text) > 1024 or len(parts) > 64:
        raise PatchError(
            f"{where}: found path {text[:100]!r}, expected a plain relative one that stays inside its tree"
        )
    return text


def read_patch(text: str, *, where: str = "patch") -> tuple[FilePatch, ...]:
    """Read a unified diff, with or without git's headers.

    Args:
        text: the diff; text before its first header is ignored, as by other readers.
        where: names it in messages.

    Raises:
        PatchError: naming the line.
    """
    if len(text) > LIMIT_CHARS:
        raise PatchError(f"{where}: {len(text):,} characters, {LIMIT_CHARS:,} are read")
    reader = _Reader(text, where)
    patches = reader.patches()
    if len(patches) > MAX_FILES:
        raise PatchError(f"{where}: changes {len(patches):,} files, {MAX_FILES} are read")
    paths = [path for patch in patches for path in patch.paths]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise PatchError(f"{where}: changes {twice[0]} twice")
    return patches


def apply_patch(
    files: Mapping[str, str], patches: tuple[FilePatch, ...], *, where: str = "patch"
) -> dict[str, str | None]:
    """Path to content after the patch, for the paths it changes; None for those it removes.

    A hunk is looked for at its line, then at growing distance from there; every line of it must be equal.

    Raises:
        PatchError: a file or a hunk is not there, or a file that would be made is.
    """
    changed: dict[str, str | None] = {}
    for patch in patches:
        here = f"{where}, {patch.path}"
        if patch.old is None:
            if patch.path in files:
                raise PatchError(f"{here}: is to be made and exists already")
            before = ""
        elif patch.old not in files:
            raise PatchError(f"{where}, {patch.old}: does not exist")
        else:
            before = files[patch.old]
        after = _applied(before, patch.hunks, where=here)
        if patch.old is not None and patch.old != patch.new:
            changed[patch.old] = None
        if patch.new is None:
            if after:
                raise PatchError(f"{here}: is to be removed, and {len(after)} characters of it are not in the patch")
        else:
            changed[patch.new] = after
    return changed


def patched(tree: Tree, patches: tuple[FilePatch, ...], *, where: str = "patch") -> Tree:
    """What to write so that the patches are applied to files of a tree; those that go are `Kind.GONE`.

    Raises:
        PatchError: one does not apply; then nothing is to be written.
    """
    present = {item.path: item for item in tree.entries if item.kind is Kind.FILE}
    named = frozenset[str]().union(*(patch.paths for patch in patches)) & present.keys()
    texts = {path: present[path].data.decode("utf-8", "surrogateescape") for path in named}
    bits = {patch.path: _bit(patch, present) for patch in patches}
    return Tree(
        tuple(
            Entry(path=path, kind=Kind.GONE)
            if text is None
            else Entry(path=path, data=text.encode("utf-8", "surrogateescape"), is_executable=bits[path])
            for path, text in apply_patch(texts, patches, where=where).items()
        )
    )


def _bit(patch: FilePatch, present: Mapping[str, Entry]) -> bool:
    before = None if patch.old is None else present.get(patch.old)
    if patch.is_executable is not None:
        return patch.is_executable
    return before is not None and before.is_executable


def reversed_patch(patches: tuple[FilePatch, ...]) -> tuple[FilePatch, ...]:
    """The patch that undoes another."""
    turned = []
    for patch in patches:
        hunks, shift = [], 0
        for hunk in patch.hunks:
            start = hunk.start + shift + bool(not hunk.before) - bool(not hunk.after)
            hunks.append(replace(hunk, start=start, before=hunk.after, after=hunk.before))
            shift += len(hunk.after) - len(hunk.before)
        turned.append(FilePatch(old=patch.new, new=patch.old, hunks=tuple(hunks)))
    return tuple(turned)


def _applied(before: str, hunks: tuple[Hunk, ...], *, where: str) -> str:
    lines = _split(before)
    out: list[str] = []
    at, drift = 0, 0
    for number, hunk in enumerate(hunks, start=1):
        wanted = hunk.start - (1 if hunk.before else 0) + drift
        found = _place(lines, hunk.before, wanted=wanted, first=at)
        if found is None:
            raise PatchError(f"{where}: hunk {number} does not fit at or near line {hunk.start}")
        drift += found - wanted
        out += lines[at:found]
        out += hunk.after
        at = found + len(hunk.before)
    return "".join([*out, *lines[at:]])


def _split(text: str) -> list[str]:
    """Lines ended by line feeds alone."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _place(lines: list[str], wanted_lines: tuple[str, ...], *, wanted: int, first: int) -> int | None:
    """Where the lines stand, nearest to ``wanted`` and not before ``first``."""
    size, last = len(wanted_lines), len(lines) - len(wanted_lines)
    if not size:
        return wanted if first <= wanted <= len(lines) else None
    target = list(wanted_lines)
    for distance in range(max(wanted - first, last - wanted, 0) + 1):
        for at in {wanted - distance, wanted + distance}:
            if first <= at <= last and lines[at] == target[0] and lines[at : at + size] == target:
                return at
    return None


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self._lines = _split(text)
        self._where = where
        self._at = 0

    def patches(self) -> tuple[FilePatch, ...]:
        """All files, in order."""
        found: list[FilePatch] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                found.append(self._git_file(line))
            elif line.startswith("--- ") and self._peek(1).startswith("+++ "):
                found.append(self._plain_file(None, None))
            elif found and line.strip() and not line.startswith("-- "):
                raise self._refuse(f"found {line[:60]!r}, expected a hunk, a header or the end")
            elif line.startswith("-- "):
                break  # the signature of a mailed patch
            else:
                self._at += 1
        if not found:
            raise PatchError(f"{self._where}: no file is changed")
        return tuple(found)

    def _git_file(self, header: str) -> FilePatch:
        old, new = self._git_paths(header)
        bit: bool | None = None
        self._at += 1
        while self._at < len(self._lines):
            line = self._lines[self._at].rstrip("\n")
            word, _, rest = line.rpartition(" ")
            if line.startswith("new file mode "):
                old = None
            elif line.startswith("deleted file mode "):
                new = None
            elif line.startswith(("rename from ", "rename to ", "copy from ", "copy to ")):
                raise self._refuse(f"found `{line[:60]}`: renames and copies are not read; write both files out")
            elif not line.startswith((*_HEADER, "old mode ", "new mode ")):
                break
            if word.endswith("mode") and rest not in _PLAIN_MODES:
                raise self._refuse(f"found mode {rest}: links and submodules are not read")
            if line.startswith("new "):
                bit = rest == "100755"
            self._at += 1
        if self._peek(0).startswith("--- ") and self._peek(1).startswith("+++ "):
            return replace(self._plain_file(old, new), is_executable=bit)
        if self._peek(0).startswith(("GIT binary patch", "Binary files ")):
            raise self._refuse("binary content is not read")
        return FilePatch(old=old, new=new, is_executable=bit)

    def _git_paths(self, header: str) -> tuple[str | None, str | None]:
        names = header.rstrip("\n").removeprefix("diff --git ")
        half = len(names) // 2
        old, new = names[:half], names[half + 1 :]
        if '"' in names or not old.startswith("a/") or not new.startswith("b/") or old[2:] != new[2:]:
            raise self._refuse(f"found {header[:100]!r}, expected one path twice, as a/path and b/path")
        path = tree_path(old[2:], where=self._here)
        return path, path

    def _plain_file(self, old: str | None, new: str | None) -> FilePatch:
        named = old, new
        old, new = self._side("--- ", "a/"), self._side("+++ ", "b/")
        if old is None and new is None:
            raise self._refuse("both sides are /dev/null")
        if named != (None, None) and (old, new) != named:
            raise self._refuse(f"the sides {old} and {new} are not the files of the header, {named[0]} and {named[1]}")
        hunks = []
        while self._peek(0).startswith("@@ "):
            hunks.append(self._hunk())
        if not hunks:
            raise self._refuse("a file without hunks")
        return FilePatch(old=old, new=new, hunks=tuple(hunks))

    def _side(self, mark: str, prefix: str) -> str | None:
        name = self._lines[self._at].rstrip("\n").removeprefix(mark).partition("\t")[0]
        self._at += 1
        if name == "/dev/null":
            return None
        return tree_path(name.removeprefix(prefix), where=self._here)

    def _hunk(self) -> Hunk:
        found = _HUNK.fullmatch(self._lines[self._at])
        if found is None:
            raise self._refuse(f"found {self._lines[self._at][:60]!r}, expected @@ -a,b +c,d @@")
        counts = [1 if text is None else int(text) for text in (found[2], found[4])]
        self._at += 1
        before: list[str] = []
        after: list[str] = []
        while len(before) < counts[0] or len(after) < counts[1] or self._peek(0).startswith("\\"):
            line = self._peek(0)
            if line.startswith("\\"):
                self._unended(before, after)
            elif line[:1] in (" ", "\n"):
                text = line[1:] if line.startswith(" ") else line
                before.append(text)
                after.append(text)
            elif line[:1] in ("-", "+"):
                (before if line[0] == "-" else after).append(line[1:])
            else:
                raise self._refuse(f"found {line[:60]!r} inside a hunk that wants more lines")
            self._at += 1
        if [len(before), len(after)] != counts:
            raise self._refuse(f"a hunk of {len(before)} and {len(after)} lines announces {counts[0]} and {counts[1]}")
        return Hunk(start=int(found[1]), before=tuple(before), after=tuple(after))

    def _unended(self, before: list[str], after: list[str]) -> None:
        """The line just read has no end."""
        last = self._peek(-1)[:1]
        for sign, side in (("+", before), ("-", after)):
            if last != sign and side:
                side[-1] = side[-1].removesuffix("\n")

    def _peek(self, ahead: int) -> str:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else ""

    @property
    def _here(self) -> str:
        return f"{self._where}, line {self._at + 1}"

    def _refuse(self, why: str) -> PatchError:
        return PatchError(f"{self._here}: {why}")
