"""Instances of SWE-bench: JSON objects with a gold patch, a test patch and the ids of the tests that decide."""

from collections.abc import Mapping
from pathlib import Path

from kifu.envs.repositories.repository import RepositoryTask, ids_of, read_json, text_of, unique
from kifu.errors import UsageError, nearest
from kifu.records import Json
from kifu.sandbox.patches import read_patch

_FACTS = ("hints_text", "created_at", "environment_setup_commit")


def read_swebench(path: Path, *, interpreters: Mapping[str, str] | None = None) -> tuple[RepositoryTask, ...]:
    """Read a file of instances, ``.json`` (a list) or ``.jsonl``.

    The format does not name the Python its test ids were made with; with another one ids differ and a right patch
    scores nothing. So the caller names it.

    Args:
        path: the file.
        interpreters: instance id to the Python it needs, e.g. ``{"django__django-15781": "3.9"}``; an instance that is
            not named can be read and not run.

    Raises:
        UsageError: naming the file, the instance and the field.
    """
    rows = unique(read_json(path), key="instance_id", where=str(path))
    tasks = tuple(_task(row, where=f"{path}, {row['instance_id']}", interpreters=interpreters or {}) for row in rows)
    known = [task.id for task in tasks]
    for name in interpreters or {}:
        if name not in known:
            raise UsageError(f"{path}: interpreters names `{name}`, which is not there; {nearest(name, known)}")
    return tasks


def _task(row: Mapping[str, Json], *, where: str, interpreters: Mapping[str, str]) -> RepositoryTask:
    name = text_of(row, "instance_id", where=where)
    return RepositoryTask(
        id=name,
        repo=text_of(row, "repo", where=where),
        base=text_of(row, "base_commit", where=where),
        problem=text_of(row, "problem_statement", where=where),
        fail_to_pass=ids_of(row, "FAIL_TO_PASS", where=where),
        pass_to_pass=ids_of(row, "PASS_TO_PASS", where=where),
        gold=read_patch(text_of(row, "patch", where=where), where=f"{where}, patch"),
        tests=read_patch(text_of(row, "test_patch", where=where), where=f"{where}, test_patch"),
        version=text_of(row, "version", where=where, default=""),
        interpreter=interpreters.get(name),
        facts={field: text_of(row, field, where=where, default="") for field in _FACTS},
    )
