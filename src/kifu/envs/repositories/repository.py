"""A repository with a defect and the tests that show it: what every foreign format of such tasks is read into."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kifu.envs.spec import Task
from kifu.errors import UsageError
from kifu.records import Json
from kifu.sandbox.patches import FilePatch, tree_path

LIMIT_BYTES = 256 << 20
"""Size of a file of instances that is read."""
LIMIT_TEXT = 4_000_000
LIMIT_IDS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryTask:
    """One instance. ``gold`` and ``tests`` are the judge's; the policy sees the problem and the broken tree."""

    id: str
    repo: str
    """``owner/name``."""
    base: str
    """Commit or release the patches are made for."""
    problem: str
    """What the policy is told."""
    fail_to_pass: tuple[str, ...]
    """Ids of tests that fail on the broken tree and pass on the mended one."""
    pass_to_pass: tuple[str, ...]
    """Ids of tests that pass on both."""
    gold: tuple[FilePatch, ...]
    """Turns the broken tree into the mended one."""
    bug: tuple[FilePatch, ...] = ()
    """Turns the released tree into the broken one; empty where the release is broken itself."""
    tests: tuple[FilePatch, ...] = ()
    """Adds the tests that decide; applied by the judge, never in the policy's tree."""
    version: str = ""
    interpreter: str | None = None
    """Python the tests need, e.g. ``3.9``: ids and results depend on it. None: nobody said, and it cannot be run."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else the source says: image, dates, hints."""

    def __post_init__(self) -> None:
        where = f"instance {self.id!r}"
        tree_path(self.id, where=where)
        if "/" in self.id:
            raise UsageError(f"{where}: an id has no slash")
        if not self.fail_to_pass:
            raise UsageError(f"{where}: no test fails on the broken tree, so nothing could be shown; drop it")
        both = sorted({*self.fail_to_pass} & {*self.pass_to_pass})
        if both:
            raise UsageError(f"{where}: test {both[0]!r} is in FAIL_TO_PASS and in PASS_TO_PASS")
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))

    def task(self, *, split: str = "train") -> Task:
        """The instance as a task of an environment; the judge's part is not in it."""
        data: dict[str, Json] = {"instance": self.id, "repo": self.repo, "base": self.base, "problem": self.problem}
        return Task(id=self.id, family=self.repo, split=split, data=data)


def read_json(path: Path) -> list[dict[str, Json]]:
    """Objects of a file: a JSON list, one JSON object, or a line each (``.jsonl``).

    Raises:
        UsageError: not there, too large, not UTF-8, not JSON, not objects, nested too deep, or a name twice.
    """
    if not path.is_file():
        raise UsageError(f"instances: no file {path}")
    if path.stat().st_size > LIMIT_BYTES:
        raise UsageError(f"{path}: {path.stat().st_size:,} bytes, {LIMIT_BYTES:,} are read; split the file")
    try:
        text = path.read_bytes().decode("utf-8")
        parts = [line for line in text.split("\n") if line.strip()] if path.suffix == ".jsonl" else [text]
        found = [json.loads(part, object_pairs_hook=_once, parse_constant=_no_constant) for part in parts]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not the JSON it should be: {error}") from None
    rows = found[0] if path.suffix != ".jsonl" and isinstance(found[0], list) else found
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UsageError(f"{path}, instance {at}: found {type(row).__name__}, expected an object")
    return list(rows)


def unique(rows: list[dict[str, Json]], *, key: str, where: str) -> list[dict[str, Json]]:
    """The rows, one for each ``key``: equal repetitions fall together, different ones are refused."""
    kept: dict[str, dict[str, Json]] = {}
    for at, row in enumerate(rows):
        name = text_of(row, key, where=f"{where}, instance {at}")
        if kept.setdefault(name, row) != row:
            raise UsageError(f"{where}: two different instances are called {name!r}; keep one")
    return list(kept.values())


def text_of(row: Mapping[str, Json], name: str, *, where: str, default: str | None = None) -> str:
    """A text field.

    Raises:
        UsageError: missing without a default, not text, too long, or not valid Unicode.
    """
    value = row.get(name, default)
    if value is None and default is not None:
        value = default
    if not isinstance(value, str):
        raise UsageError(f"{where}: `{name}` is {_kind(value)}, expected text")
    if len(value) > LIMIT_TEXT or any(0xD800 <= ord(char) < 0xE000 for char in value) or "\0" in value:
        raise UsageError(f"{where}: `{name}` has {len(value):,} characters or some that no text file holds")
    return value


def ids_of(row: Mapping[str, Json], name: str, *, where: str) -> tuple[str, ...]:
    """A list of test ids, or the same as JSON text, in order.

    Raises:
        UsageError: anything else, an empty id, one with a line end, or one that stands there twice.
    """
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError(f"{where}: `{name}` is text that is not a JSON list") from None
    if not isinstance(value, list) or len(value) > LIMIT_IDS:
        raise UsageError(f"{where}: `{name}` is {_kind(value)}, expected a list of at most {LIMIT_IDS:,} test ids")
    found: list[str] = []
    for item in value:
        if not isinstance(item, str) or not item.strip() or "\n" in item or "\0" in item:
            raise UsageError(f"{where}: `{name}` holds {item!r:.100}, expected a test id of one line")
        found.append(item)
    if len(set(found)) != len(found):
        twice = next(item for item in found if found.count(item) > 1)
        raise UsageError(f"{where}: `{name}` names {twice!r} twice")
    return tuple(found)


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has one name twice")
    return made


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: Json) -> str:
    return "missing" if value is None else type(value).__name__
