"""Killed at any named point, a run loses nothing it promised and comes out as if it had not been killed."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from kifu.records import CRASH_POINTS, RunReader, WeightStore, content_digest, crash_point, read_plan

CHILD = Path(__file__).with_name("crash_child.py")

Kill: TypeAlias = Callable[[Path, str], tuple[int, list[list[str]]]]
"""Runs the child on a folder, killed at a point, and gives its exit code and all promises so far."""


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as server:

        def ask(folder: Path, crash_at: str) -> tuple[int, list[list[str]]]:
            assert server.stdin is not None
            assert server.stdout is not None
            promises = folder / "promises"
            server.stdin.write(f"{folder}\t{crash_at}\t{promises}\n")
            code = int(server.stdout.readline())
            return code, [line.split() for line in promises.read_text().splitlines()]

        yield ask


def contents(folder: Path) -> tuple[list[tuple[str, str]], list[int], list[str]]:
    """Records with digests in order, steps planned, weight digests."""
    records = [(record.id, content_digest(record)) for record in RunReader(folder).trajectories()]
    store = WeightStore(folder / "weights", read_only=True)
    for version in store.versions:
        assert float(np.max(store.get(version.version).tensors["w"])) == version.version
    return records, [line.step for line in read_plan(folder)], [version.digest for version in store.versions]


@pytest.fixture(scope="module")
def uninterrupted(kill: Kill, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("whole")
    assert kill(folder, "")[0] == 0
    return contents(folder)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_kill_at_a_point_and_again_during_the_resume_changes_nothing(
    point: str, kill: Kill, uninterrupted: object, tmp_path: Path
) -> None:
    for _ in range(2):
        code, promised = kill(tmp_path, point)
        assert code == -signal.SIGKILL, f"{point} was never passed"
        records, steps, digests = contents(tmp_path)
        names = [name for name, _ in records]
        assert len(names) == len(set(names))
        assert {name for kind, name in promised if kind == "record"} <= set(names)
        assert {int(name) for kind, name in promised if kind == "plan"} <= set(steps)
        assert len(digests) >= len({name for kind, name in promised if kind == "version"})
    assert kill(tmp_path, "")[0] == 0
    assert contents(tmp_path) == uninterrupted


def test_without_the_variable_a_point_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIFU_CRASH_AT", raising=False)
    for point in CRASH_POINTS:
        crash_point(point)
    monkeypatch.setenv("KIFU_CRASH_AT", "another")
    crash_point(CRASH_POINTS[0])
