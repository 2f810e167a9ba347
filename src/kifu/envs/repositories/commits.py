"""Change records out of the history of git repositories: what a commit says, its source files before and after.

A repository is trusted no more than any other input. git runs in a box that sees the repository's folder read-only and
nothing else of this machine; it reads the objects and the names of the heads, under a configuration of our own. No
hook, filter, alias, program for diffs, signature or remote that the repository names can run or steer what is read.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from kifu.envs.repositories.history import Change, Commit, History
from kifu.envs.suites.swe_rl import read_change
from kifu.errors import UsageError
from kifu.records import Json
from kifu.sandbox.globs import matches
from kifu.sandbox.tree import path_problem

Item = TypeVar("Item")
_LONGEST_MESSAGE = 20_000
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_PEOPLE = re.compile(r"^[\w-]+-by: .*\n?", re.IGNORECASE | re.MULTILINE)
_PLAIN = ("100644", "100755")


class Why(StrEnum):
    """Why a commit is no record; the first that holds, in this order."""

    MERGE = "a merge"
    FIRST = "without a parent"
    MESSAGE = "message too short, too long or no text"
    NO_SOURCE = "no source file changes"
    NOT_EDITED = "a source file comes, goes, changes its mode, is a link or a submodule, or has no plain name"
    MANY_FILES = "too many source files"
    MISSING = "a source file is not in the store of the repository"
    LARGE = "a source file is too large"
    BINARY = "a source file is not UTF-8 text"
    MANY_LINES = "too many lines change"
    NOT_COMPARABLE = "its own edit does not earn 1"
    KNOWN = "the same files before and after as another commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which commits become records. Of a commit, only source files are in its record."""

    sources: tuple[str, ...] = ("**/*.py",)
    """Patterns of paths."""
    left_out: tuple[str, ...] = (
        *("**/tests/**", "**/test/**", "**/testing/**", "**/test_*.py", "**/*_test.py", "**/conftest.py"),
        *("**/vendor/**", "**/_vendor/**", "**/vendored/**", "**/third_party/**", "**/node_modules/**"),
    )
    """Patterns of paths that are no source all the same: tests, and code of others."""
    files: int = 3
    """Source files a commit may change."""
    lines: int = 100
    """Lines it may add to them and take out of them."""
    file_bytes: int = 50_000
    """Size of one of them, before and after."""
    message_chars: int = 30
    """Least length of its message, lines such as ``Signed-off-by`` left out."""
    commits: int = 20_000
    """Looked at, the newest of each repository."""

    def is_source(self, path: str) -> bool:
        """Whether a file of this path is looked at."""
        return matches(path, list(self.sources)) and not matches(path, list(self.left_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Which commits are of split ``held_out``: either of the two suffices. No other is trained on."""

    since: datetime | None = None
    """Those committed then or later, and what was committed on top of them, whatever its date says."""
    repositories: frozenset[str] = frozenset()
    """All those of these repositories, by name."""

    def __post_init__(self) -> None:
        if self.since is not None and self.since.tzinfo is None:
            raise UsageError(f"held out since {self.since}: expected a time with its zone")

    def split(self, name: str, time: int) -> str:
        """The split of a commit of a repository, by the seconds of its time."""
        is_late = self.since is not None and time >= self.since.timestamp()
        return "held_out" if is_late or name in self.repositories else "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    """The records, and what became of every commit that was looked at."""

    records: tuple[Mapping[str, Json], ...]
    """As a file of ``swe_rl`` holds them: repositories in the order given, commits before what is built on them."""
    dropped: Mapping[Why, int] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """Commits looked at."""
        return len(self.records) + sum(self.dropped.values())

    def write(self, path: Path) -> None:
        """Write the records as JSON lines.

        Raises:
            UsageError: there are none, or the file exists.
        """
        if not self.records:
            raise UsageError(f"{path}: no commit of {self.seen:,} became a record; see why, and ask for less")
        try:
            with path.open("x") as file:
                file.writelines(json.dumps(record, sort_keys=True) + "\n" for record in self.records)
        except FileExistsError:
            raise UsageError(f"{path}: exists already; remove it, or name another file") from None


def mine_commits(
    repositories: Mapping[str, Path], *, filters: Filters | None = None, held_out: HeldOut | None = None
) -> Mined:
    """Change records of the commits that the head of each repository is built on.

    Args:
        repositories: name to folder, with or without a work tree; the name is the records' ``family``.
        filters: which commits.
        held_out: which of them are not to be trained on; a change that occurs twice is one record, of its first split.

    Raises:
        UsageError: a folder is no repository that git can read.
        SandboxUnavailable: no box for git on this machine.
    """
    filters, held_out = filters or Filters(), held_out or HeldOut()
    unknown = sorted(held_out.repositories - set(repositories))
    if unknown:
        raise UsageError(f"held out: no repository {unknown[0]!r} among {', '.join(repositories)}")
    records: list[Mapping[str, Json]] = []
    dropped: Counter[Why] = Counter()
    known: set[str] = set()
    for name, folder in repositories.items():
        with closing(History(folder, name=name)) as history:
            for commit, files, oracle in _edits(history, filters, dropped):
                digest = sha256(json.dumps([files, oracle], sort_keys=True).encode()).hexdigest()
                record: dict[str, Json] = {
                    "id": f"{name}@{commit.id}",
                    "family": name,
                    "split": held_out.split(name, commit.time),
                    "problem": _problem(commit),
                    "files": {**files},
                    "oracle": {**oracle},
                }
                if digest in known:
                    dropped[Why.KNOWN] += 1
                elif not _is_readable(record):
                    dropped[Why.NOT_COMPARABLE] += 1
                else:
                    known.add(digest)
                    records.append(record)
    return Mined(records=tuple(records), dropped={why: dropped[why] for why in Why if dropped[why]})


_Edit = tuple[Commit, Mapping[str, str], Mapping[str, str]]


def _edits(history: History, filters: Filters, dropped: Counter[Why]) -> Iterator[_Edit]:
    """Commits that pass, with their source files before and after; the others are counted."""
    messages = _kept(history.commits(filters.commits), lambda commit: _by_message(commit, filters), dropped)
    found = zip(messages, history.changes([commit.id for commit in messages]), strict=True)
    sources = [(commit, [change for change in made if filters.is_source(change.path)]) for commit, made in found]
    small = _kept(sources, lambda pair: _by_changes(pair[1], filters), dropped)
    sizes = history.sizes({side for _, changes in small for change in changes for side in change.sides})
    for commit, changes in _kept(small, lambda pair: _by_sizes(pair[1], sizes, filters), dropped):
        data = history.contents(side for change in changes for side in change.sides)
        before = {change.path: data[change.before] for change in changes}
        after = {change.path: data[change.after] for change in changes}
        if any(b"\0" in text or not _is_utf8(text) for text in data.values()):
            dropped[Why.BINARY] += 1
        elif sum(_changed_lines(before[path], after[path]) for path in before) > filters.lines:
            dropped[Why.MANY_LINES] += 1
        else:
            yield commit, _decoded(before), _decoded(after)


def _kept(items: Iterable[Item], why: Callable[[Item], Why | None], dropped: Counter[Why]) -> list[Item]:
    """Items that nothing speaks against; the others are counted."""
    judged = [(item, why(item)) for item in items]
    dropped.update(reason for _, reason in judged if reason is not None)
    return [item for item, reason in judged if reason is None]


def _by_message(commit: Commit, filters: Filters) -> Why | None:
    if len(commit.parents) > 1:
        return Why.MERGE
    if not commit.parents:
        return Why.FIRST
    is_text = _UNREADABLE not in commit.message
    is_long = filters.message_chars <= len(_problem(commit)) <= _LONGEST_MESSAGE
    return None if is_text and is_long else Why.MESSAGE


def _problem(commit: Commit) -> str:
    """The message without the lines that name people, such as ``Signed-off-by: ...``."""
    return _PEOPLE.sub("", commit.message).strip()


def _by_changes(sources: Sequence[Change], filters: Filters) -> Why | None:
    if not sources:
        return Why.NO_SOURCE
    if not all(_is_edit(change) for change in sources):
        return Why.NOT_EDITED
    return Why.MANY_FILES if len(sources) > filters.files else None


def _is_edit(change: Change) -> bool:
    is_plain = not path_problem(change.path) and _UNREADABLE not in change.path
    return is_plain and change.modes in [(mode, mode) for mode in _PLAIN]


def _by_sizes(changes: Sequence[Change], sizes: Mapping[str, int], filters: Filters) -> Why | None:
    sides = {side for change in changes for side in change.sides}
    if not sides <= sizes.keys():
        return Why.MISSING
    return Why.LARGE if max(sizes[side] for side in sides) > filters.file_bytes else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _changed_lines(before: bytes, after: bytes) -> int:
    """Lines that one side has more often than the other; one that only moves is not counted."""
    old, new = Counter(before.split(b"\n")), Counter(after.split(b"\n"))
    return (old - new).total() + (new - old).total()


def _decoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: data.decode() for path, data in files.items()}


def _is_readable(record: Mapping[str, Json]) -> bool:
    """Whether the environment takes the record."""
    try:
        read_change(json.dumps(record), where=str(record["id"]))
    except UsageError:
        return False
    return True
