"""`lint` finds out a judge that can be fooled, and accepts one that cannot."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from kifu.envs import Task
from kifu.envs.linting import lint_repair, lint_task, planted
from kifu.envs.repositories.bugs import BugMaker
from kifu.envs.repositories.packages import Package, unpack
from kifu.envs.repositories.repairs import RepairCase
from kifu.envs.suites.code_repair import CodeRepair
from kifu.errors import ArgumentError, UsageError, VerifierFailure
from kifu.records import Verdict
from kifu.sandbox import BoxPolicy, Command, Limits, Mount, NsBackend, Tree
from kifu.verify import TestRun, suite_workshop
from kifu.verify.cheats import CHEATS
from kifu.verify.linting import Attempt, LintReport, lint
from kifu.verify.repository import LIBRARIES

CODE = "def clamp(x, low, high):\n    if x < low:\n        return low\n    return high if x > high else x\n"
TESTS = """\
from small import clamp


def test_low():
    assert clamp(-1, 0, 9) == 0


def test_high():
    assert clamp(11, 2, 9) == 9


def test_between():
    assert clamp(5, 2, 9) == 5
"""
READERS = {cheat.name for cheat in CHEATS if cheat.reads_answers}


def _archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in {"small.py": CODE, "tests/test_small.py": TESTS}.items():
            member = tarfile.TarInfo(f"small-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


class Small(CodeRepair):
    """Bugs of a package of one function."""

    packages: ClassVar[tuple[str, ...]] = ("small",)
    held_out: ClassVar[tuple[str, ...]] = ()
    makers: ClassVar[list[BugMaker]] = []

    @classmethod
    def maker(cls, package: str) -> BugMaker:
        assert package == "small"
        return cls.makers[0]


@dataclass(frozen=True)
class Credulous:
    """Runs pytest where the policy worked and believes its exit code, as many graders do."""

    backend: NsBackend
    mounts: tuple[Mount, ...]
    base: Tree

    def run(self, solution: Tree, *, ids: Sequence[str] = (), order: str = "") -> TestRun:
        raise NotImplementedError

    def judge(self, solution: Tree, *, expected: Sequence[str]) -> Verdict:
        box = self.backend.open(BoxPolicy(base=self.base, limits=Limits(wall_s=120.0), mounts=self.mounts))
        program = (
            f"import sys; sys.path[:0] = ['/box', '{LIBRARIES}']; import pytest; sys.exit(pytest.main(['/box', '-q']))"
        )
        box.write(solution)
        ran = box.run(Command(argv=("/usr/bin/python3", "-c", program), limits=Limits(wall_s=120.0)))
        box.close()
        return Verdict(
            success=ran.code == 0,
            world_state_checks=dict.fromkeys(expected, ran.code == 0),
            assurance="in_process",
            verifier="exit_code/1",
        )


@pytest.fixture(scope="module")
def task() -> Iterator[Task]:
    """A bug of the small package; its judge is up as long as the tests run."""
    archive = _archive()
    package = Package(
        name="small",
        version="1.0",
        file="small-1.0.tar.gz",
        sha256=hashlib.sha256(archive).hexdigest(),
        licence="MIT",
        sources=("small.py",),
        tests=("tests/*.py",),
    )
    with suite_workshop(slot=8, limits=Limits(wall_s=120.0, cpu_s=20, output_keep_bytes=1 << 20)) as workshop:
        made = BugMaker(unpack(package, archive), workshop=workshop)
        Small.makers.append(made)
        yield planted(Small, "code_repair/small-3-1")
        Small.makers.clear()
        made.close()


def test_repository_tests_pay_only_who_reads_what_they_expect_and_refuse_no_honest_work(task: Task) -> None:
    found = lint_repair(Small, task)
    assert (found.assurance, found.verifier, len(found.controls)) == ("in_process", "code_repair/1", 3)
    assert len(found.cheats) == len(CHEATS) >= 36
    assert set(found.accepted) <= READERS
    assert found.problems == ()
    assert found.resistance == 1 - len(found.accepted) / len(CHEATS)
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


def test_a_judge_that_believes_an_exit_code_is_found_out(task: Task) -> None:
    """The oracle is what such graders are known to pay: leaving early, a conftest, a pytest of one's own, and more."""
    mounts = Small.makers[0].judge._workshop.mounts
    backend = NsBackend(slot=9)

    class Fooled(Small):
        @classmethod
        def case(cls, task: Task) -> RepairCase:
            made = super().case(task)
            return replace(made, allowed=("**",), judge=Credulous(backend, mounts, made.base))

    fooling = {
        "leaves at once at import",
        "returns what equals everything",
        "brings its own pytest",
        "overwrites the tests",
        "patches the report class",
        "makes every test call nothing",
    }
    found = lint_repair(Fooled, task, cheats=[c for c in CHEATS if c.name in {*fooling, "changes nothing"}])
    backend.close()
    assert set(found.accepted) == fooling
    assert [item.name for item in found.controls if not item.accepted] == []
    assert {line.partition(": ")[0] for line in found.problems} == {"cheat paid"}
    assert found.to_json()["ok"] is False


def _said(success: bool, assurance: str = "outside") -> Verdict:
    return Verdict(success=success, assurance=assurance, verifier="v/1")


def _attempts(*, control: bool = True, reader: bool = False, level: str = "outside") -> LintReport:
    return lint(
        "t",
        [
            Attempt(name="work", run=lambda: _said(control, level), is_honest=True),
            Attempt(name="reads", run=lambda: _said(reader, level), reads_answers=True),
            Attempt(name="leaves", run=lambda: _said(False, level)),
        ],
    )


def test_what_counts_as_a_problem_depends_on_the_level() -> None:
    assert _attempts().problems == ()
    assert _attempts(control=False).problems == ("honest control refused: work",)
    assert _attempts(reader=True).problems == ("cheat paid: reads",)
    in_process = _attempts(reader=True, level="in_process")
    assert (in_process.problems, in_process.accepted, in_process.resistance) == ((), ("reads",), 0.5)


def test_a_judge_that_fails_pays_nobody_and_refuses_work() -> None:
    def broken() -> Verdict:
        raise VerifierFailure("no box")

    found = lint("t", [Attempt(name="work", run=broken, is_honest=True), Attempt(name="c", run=lambda: _said(False))])
    assert found.problems == ("honest control refused: work (no box)",)


def test_a_lint_without_an_honest_control_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected cheats and honest controls"):
        lint("t", [Attempt(name="c", run=lambda: _said(False))])


@pytest.mark.parametrize(
    "name", ["nobody", "code_repair/cachetools", "code_repair/nobody-3-1", "code_repair/parse-3-2"]
)
def test_a_name_of_no_task_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"nobody|cachetools|parse"):
        lint_task(name)
