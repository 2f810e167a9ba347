"""Instances of SWE-bench and SWE-smith as tasks of `code_repair`: a sheet says where each one's files and Python are.

Instances come without files: a tree is a commit of a repository, its Python and packages an image. Here a sheet names
for each a source archive, a Python installation and a folder of packages on this machine.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from kifu.envs.adapters.swebench import read_swebench
from kifu.envs.adapters.swesmith import read_swesmith
from kifu.envs.repositories.repairs import RepairCase
from kifu.envs.repositories.repository import RepositoryTask
from kifu.envs.spec import Task
from kifu.envs.splits import SPLITS
from kifu.errors import UsageError, nearest
from kifu.sandbox import Entry, Kind, Tree
from kifu.sandbox.globs import matches
from kifu.sandbox.patches import FilePatch, patched
from kifu.verify.program import RUNNERS, ProgramJudge, ProgramSuite

_READERS = {"swebench": read_swebench, "swesmith": read_swesmith}
_LEFT_OUT = ("docs/**", "doc/**", "**/*.po", ".git/**", "**/.git/**", ".github/**")
_FIELDS = ("source", "sha256", "python", "libraries", "runner", "sources", "roots", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one instance's files are, and what runs its tests."""

    source: Path
    """Archive of the tree, under one top folder, as a source distribution is."""
    python: Path
    """Folder of a Python installation; ids and results of tests depend on its version."""
    sources: tuple[str, ...]
    """Patterns of what a solution may consist of."""
    sha256: str | None = None
    libraries: Path | None = None
    runner: str = "pytest"
    roots: tuple[str, ...] = ("",)
    split: str = "train"


class Instances:
    """The instances of a sheet, as a source of tasks for `code_repair`.

    Args:
        tasks: as read.
        places: by instance id.
    """

    def __init__(self, tasks: Iterable[RepositoryTask], *, places: Mapping[str, Place]) -> None:
        known = {task.id: task for task in tasks}
        for name in places:
            if name not in known:
                raise UsageError(f"instances: a place for `{name}`, which is not there; {nearest(name, list(known))}")
        self._known = {name: known[name] for name in places}
        self._places = dict(places)
        self._cases: dict[str, RepairCase] = {}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Instances that have a place, in the order of the sheet."""
        return tuple(self._places)

    def task(self, name: str) -> Task:
        """One instance as a task.

        Raises:
            UsageError: no place is known for it.
        """
        if name not in self._known:
            raise UsageError(f"no instance `{name}` in the sheet; {nearest(name, list(self._known))}")
        return self._known[name].task(split=self._places[name].split)

    def tasks(self, split: str, seed: int) -> Iterable[Task]:
        """Instances of a split in the order of the sheet, each once, from a place on."""
        names = [name for name in self.ids if self._places[name].split == split]
        first = seed - (SPLITS[split].start if split in SPLITS else 0)
        yield from (self.task(name) for name in names[max(first, 0) :])

    def instance(self, name: str) -> RepositoryTask:
        """What was read: gold patch, tests, ids."""
        return self._known[name]

    def case(self, task: Task) -> RepairCase:
        """The tree with its defect, and the judge, made when first asked for.

        Raises:
            UsageError: the archive, the Python or a file of a patch is not there.
        """
        name = str(task.data.get("instance", ""))
        if name not in self._known:
            raise UsageError(f"task {task.id}: names no instance of the sheet; {nearest(name, list(self._known))}")
        if name not in self._cases:
            self._cases[name] = _case(self._known[name], self._places[name])
        return self._cases[name]

    def close(self) -> None:
        """End the judges."""
        for case in self._cases.values():
            if isinstance(case.judge, ProgramJudge):
                case.judge.close()
        self._cases.clear()


def read_instances(path: Path) -> Instances:
    """Read a sheet.

    TOML: ``format`` (``swebench`` or ``swesmith``), ``instances`` (the file of instances), and a table
    ``[instance.ID]`` for each with ``source``, ``python``, ``sources``, and optionally ``sha256``, ``libraries``,
    ``runner`` (``pytest``, ``unittest``, ``django``, ``sympy``), ``roots``, ``split``. Paths start at the sheet.

    Raises:
        UsageError: naming the sheet, the field, what was found and what was expected.
    """
    try:
        sheet = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: no sheet of instances can be read: {error}") from None
    reader = _READERS.get(str(sheet.get("format")))
    tables = sheet.get("instance")
    if reader is None or not isinstance(sheet.get("instances"), str) or not isinstance(tables, dict) or not tables:
        raise UsageError(
            f"{path}: found {sorted(sheet)}, expected format = {' or '.join(_READERS)}, instances = a file, and a "
            "table [instance.ID] for each instance to run"
        )
    places = {str(name): _place(table, path=path, name=str(name)) for name, table in tables.items()}
    return Instances(reader(path.parent / sheet["instances"]), places=places)


def _place(table: Any, *, path: Path, name: str) -> Place:  # noqa: ANN401 (a TOML tree)
    where = f"{path}, [instance.{name}]"
    if not isinstance(table, dict) or set(table) - set(_FIELDS):
        strange = sorted(set(table) - set(_FIELDS)) if isinstance(table, dict) else [type(table).__name__]
        raise UsageError(f"{where}: found `{strange[0]}`; {nearest(strange[0], list(_FIELDS))}")
    for field in ("source", "python", "sources"):
        if field not in table:
            raise UsageError(f"{where}: no `{field}`; expected source, python and sources")
    runner = table.get("runner", "pytest")
    if runner not in RUNNERS:
        raise UsageError(f"{where}: no runner `{runner}`; {nearest(str(runner), list(RUNNERS))}")
    python = path.parent / str(table["python"])
    if not (python / "bin" / "python3").exists():
        raise UsageError(f"{where}: python is {python}, expected the folder of an installation, with bin/python3 in it")
    libraries = None if table.get("libraries") is None else (path.parent / str(table["libraries"])).resolve()
    if libraries is not None and not libraries.is_dir():
        raise UsageError(f"{where}: libraries is {libraries}, expected a folder as `pip install --target` makes it")
    return Place(
        source=path.parent / str(table["source"]),
        python=python.resolve(),
        sources=_texts(table["sources"], f"{where}: sources"),
        sha256=table.get("sha256"),
        libraries=libraries,
        runner=runner,
        roots=_texts(table.get("roots", [""]), f"{where}: roots"),
        split=str(table.get("split", "train")),
    )


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where} is {value!r:.80}, expected a list of texts")
    return tuple(value)


def _case(instance: RepositoryTask, place: Place) -> RepairCase:
    where = f"instance {instance.id}"
    released = _released(place, where)
    broken = _changed(released, instance.bug, where=f"{where}, bug")
    deciding = _deciding(broken, instance, where=where)
    mended = patched(broken, instance.gold, where=f"{where}, gold patch").entries
    suite = ProgramSuite(
        base=broken,
        tests=deciding,
        allowed=place.sources,
        python=str(place.python),
        libraries=None if place.libraries is None else str(place.libraries),
        runner=place.runner,
        roots=place.roots,
    )
    outside = [item.path for item in mended if not matches(item.path, list(place.sources))]
    if outside or any(item.kind is Kind.GONE for item in mended):
        raise UsageError(
            f"{where}: its gold patch removes a file or changes {outside[:1]}, which `sources` does not allow"
        )
    return RepairCase(
        title=f"Repository {instance.repo}. {instance.problem.strip()}\n",
        base=broken,
        allowed=place.sources,
        fail_to_pass=instance.fail_to_pass,
        pass_to_pass=instance.pass_to_pass,
        judge=ProgramJudge(suite),
        mended={item.path: item.data.decode("utf-8", "surrogateescape") for item in mended},
        judges_base=True,
        left_out=tuple(deciding.files),
        names_tests=False,
    )


def _released(place: Place, where: str) -> Tree:
    """The archive's files below its top folder, without documentation and histories."""
    try:
        data = place.source.read_bytes()
    except OSError as error:
        raise UsageError(f"{where}: source {place.source}: {error.strerror}") from None
    found = sha256(data).hexdigest()
    if place.sha256 is not None and found != place.sha256:
        raise UsageError(f"{where}: source {place.source} has SHA-256 {found}, expected {place.sha256}")
    entries = []
    for item in Tree.from_archive(data, max_files=100_000).entries:
        path = item.path.partition("/")[2]
        if item.kind is Kind.FILE and path and not matches(path, list(_LEFT_OUT)):
            entries.append(Entry(path=path, data=item.data, is_executable=item.is_executable))
    if not entries:
        raise UsageError(f"{where}: source {place.source} holds no file below one top folder")
    return Tree(tuple(entries))


def _changed(tree: Tree, patches: tuple[FilePatch, ...], *, where: str) -> Tree:
    made = {item.path: item for item in patched(tree, patches, where=where).entries}
    kept = [item for item in tree.entries if item.path not in made]
    return Tree((*kept, *(item for item in made.values() if item.kind is Kind.FILE)))


def _deciding(tree: Tree, instance: RepositoryTask, *, where: str) -> Tree:
    """Test files as the test patch leaves them; without one, those that the ids name."""
    if instance.tests:
        made = patched(tree, instance.tests, where=f"{where}, test patch")
        return Tree(tuple(item for item in made.entries if item.kind is Kind.FILE))
    names = {name.partition("::")[0] for name in (*instance.fail_to_pass, *instance.pass_to_pass)}
    missing = sorted(names - set(tree.files))
    if missing:
        raise UsageError(f"{where}: test file {missing[0]!r} is not in the source")
    return Tree.of({path: tree.files[path] for path in names})
