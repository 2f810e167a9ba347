"""Instances of SWE-smith: a patch that breaks a sound tree, and the tests that notice. Its reverse mends."""

from collections.abc import Mapping
from pathlib import Path

from kifu.envs.repositories.repository import RepositoryTask, ids_of, read_json, text_of, unique
from kifu.errors import UsageError
from kifu.records import Json
from kifu.sandbox.patches import read_patch, reversed_patch

_FACTS = ("image_name", "created_at", "strategy")


def read_swesmith(path: Path, *, interpreters: Mapping[str, str] | None = None) -> tuple[RepositoryTask, ...]:
    """Read a file of instances: one object, a list of them (``.json``), or one per line (``.jsonl``).

    Args:
        path: the file.
        interpreters: ``repo`` (as the instance names it) to the Python its tests need; a repository that is not named
            can be read and not run.

    Raises:
        UsageError: naming the file, the instance and the field.
    """
    rows = unique(read_json(path), key="instance_id", where=str(path))
    return tuple(_task(row, where=f"{path}, {row['instance_id']}", interpreters=interpreters or {}) for row in rows)


def _task(row: Mapping[str, Json], *, where: str, interpreters: Mapping[str, str]) -> RepositoryTask:
    name, repo = text_of(row, "instance_id", where=where), text_of(row, "repo", where=where)
    mirror = repo.rpartition("/")[2]
    if not name.startswith(f"{mirror}."):
        raise UsageError(f"{where}: is no instance of {repo}; its id must begin with {mirror!r} and a dot")
    bug = read_patch(text_of(row, "patch", where=where), where=f"{where}, patch")
    return RepositoryTask(
        id=name,
        repo=repo,
        base=text_of(row, "base_commit", where=where, default=mirror.rpartition(".")[2]),
        problem=text_of(row, "problem_statement", where=where, default=""),
        fail_to_pass=ids_of(row, "FAIL_TO_PASS", where=where),
        pass_to_pass=ids_of(row, "PASS_TO_PASS", where=where),
        gold=reversed_patch(bug),
        bug=bug,
        interpreter=interpreters.get(repo),
        facts={field: text_of(row, field, where=where, default="") for field in _FACTS},
    )
