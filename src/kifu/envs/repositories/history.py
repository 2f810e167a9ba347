"""git's own programs on a repository nobody vouches for: in a box, on its objects and heads alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kifu.envs.text import visible
from kifu.errors import UsageError
from kifu.sandbox import Limits, Mount, Policy, RunTool, Slot, Text, Tree, open_sandbox

_PLACE = "/opt/repository"
_GIT = "/usr/bin/git"
_ENV = (
    ("GIT_DIR", "/box/git"),
    ("GIT_OBJECT_DIRECTORY", f"{_PLACE}/objects"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
)
_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tbare = true
\tbigFileThreshold = 4m
\tpackedGitWindowSize = 16m
\tpackedGitLimit = 256m
"""
_IDS = Slot(name="ids", kind=Text(max_chars=1 << 20, pattern=r"(?:[0-9a-f]{40}\n)*"))
_LIMITS = Limits(wall_s=600.0, cpu_s=600, output_keep_bytes=64 << 20, output_kill_bytes=65 << 20)
_AT_ONCE = 500
"""Commits whose changes are asked for in one call."""


def _git(name: str, *argv: str | Slot, stdin: Slot | None = None) -> RunTool:
    return RunTool(name=name, argv=(_GIT, *argv), env=_ENV, stdin=stdin)


_TOOLS = (
    RunTool(
        name="heads",
        argv=(
            *("/usr/bin/find", _PLACE, "-mindepth", "1", "-maxdepth", "1", "("),
            *("-name", "HEAD", "-o", "-name", "packed-refs", "-o", "-name", "refs", "-o", "-name", "shallow", ")"),
            *("-exec", "/bin/cp", "-rP", "--no-preserve=mode", "-t", "/box/git", "{}", "+"),
        ),
    ),
    _git(
        "commits",
        *("log", "-z", "--topo-order", "--encoding=UTF-8"),
        *("--format=tformat:%H%x00%P%x00%ct%x00%B", "--max-count", Slot(name="count", kind=Text()), "HEAD", "--"),
    ),
    _git(
        "changes",
        *("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-abbrev", "--no-renames"),
        stdin=_IDS,
    ),
    _git("sizes", "cat-file", "--batch-check", stdin=_IDS),
    _git("contents", "cat-file", "--batch", stdin=_IDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a commit says."""

    id: str
    parents: tuple[str, ...]
    time: int
    """Seconds at which it was committed, or what it is built on was, whichever is later."""
    message: str
    """What is not UTF-8 in it is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit does to one path."""

    path: str
    """What is not UTF-8 in it is replaced."""
    modes: tuple[str, str]
    """Before and after, as git writes them; ``000000`` for none."""
    before: str
    """Object of its content."""
    after: str

    @property
    def sides(self) -> tuple[str, str]:
        """Both objects."""
        return self.before, self.after


class History:
    """The commits of a repository.

    Args:
        folder: with its ``.git`` in it, or a repository without a work tree.
        name: for messages.
    """

    def __init__(self, folder: Path, *, name: str) -> None:
        self._name = name
        source = folder / ".git"
        if source.is_symlink() or source.is_file():
            raise UsageError(f"repository {name}: {source} leads elsewhere; name the repository that it leads to")
        source = (source if source.is_dir() else folder).resolve()
        if not (source / "objects").is_dir():
            raise UsageError(f"repository {name}: {folder} is no git repository: it holds no objects")
        mount = Mount(source=str(source), target=_PLACE)
        base = Tree.of({"git/config": _CONFIG})
        self._box = open_sandbox(Policy(base=base, mounts=(mount,), tools=_TOOLS, limits=_LIMITS))
        try:
            self._ask("heads")
        except UsageError:
            self.close()
            raise

    def commits(self, count: int) -> tuple[Commit, ...]:
        """The newest so many that the head is built on, each after its parents."""
        found = self._ask("commits", count=str(count)).decode("utf-8", "replace").split("\0")[:-1]
        made: dict[str, Commit] = {}
        for at in reversed(range(0, len(found), 4)):
            name, parents, seconds, message = found[at : at + 4]
            before = tuple(parents.split())
            time = max([int(seconds or 0), *(made[parent].time for parent in before if parent in made)])
            made[name] = Commit(id=name, parents=before, time=time, message=message)
        return tuple(made.values())

    def changes(self, commits: Sequence[str]) -> Iterator[tuple[Change, ...]]:
        """What each commit does to the files of its only parent; nothing for a merge."""
        for at in range(0, len(commits), _AT_ONCE):
            part = commits[at : at + _AT_ONCE]
            found = _read_changes(self._ask("changes", ids=_lines(part)).decode("utf-8", "replace"))
            yield from (found.get(commit, ()) for commit in part)

    def sizes(self, objects: Iterable[str]) -> Mapping[str, int]:
        """Bytes of each object; those that are not there, or are no files, are left out."""
        wanted, found = sorted(objects), {}
        for at in range(0, len(wanted), 20 * _AT_ONCE):
            for line in self._ask("sizes", ids=_lines(wanted[at : at + 20 * _AT_ONCE])).decode().splitlines():
                name, kind, *size = line.split(" ")
                if kind == "blob":
                    found[name] = int(size[0])
        return found

    def contents(self, objects: Iterable[str]) -> Mapping[str, bytes]:
        """The bytes of objects that `sizes` found, some 60 MB at most."""
        wanted, found, at = sorted(set(objects)), {}, 0
        answer = self._ask("contents", ids=_lines(wanted))
        for name in wanted:
            head, _, _ = answer[at : at + 100].partition(b"\n")
            at += len(head) + 1
            size = int(head.split(b" ")[2])
            found[name] = answer[at : at + size]
            at += size + 1
        return found

    def close(self) -> None:
        """Give the box up."""
        self._box.close()

    def _ask(self, tool: str, **arguments: str) -> bytes:
        result = self._box.call(tool, arguments)
        if not result.is_ok or result.is_truncated:
            said = visible(result.err[-300:] or result.message).strip() or f"it ended by {result.reason}"
            why = "its answer is longer than is read" if result.is_truncated else said
            raise UsageError(f"repository {self._name}: git cannot read its {tool}: {why}")
        return result.out


def _lines(ids: Iterable[str]) -> str:
    return "".join(f"{name}\n" for name in ids)


def _read_changes(text: str) -> dict[str, tuple[Change, ...]]:
    """By commit, of ``diff-tree -z``: a commit, then what it does to a path and the path, for every path."""
    fields = iter(text.split("\0")[:-1])
    found: dict[str, tuple[Change, ...]] = {}
    commit = ""
    for item in fields:
        if item.startswith(":"):
            old, new, before, after, _ = item[1:].split(" ")
            change = Change(path=next(fields), modes=(old, new), before=before, after=after)
            found[commit] += (change,)
        else:
            commit = item
            found[commit] = ()
    return found
