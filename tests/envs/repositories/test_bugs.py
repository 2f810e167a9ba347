"""Bugs are kept only if the package's own tests tell them from the original; the whole way runs on a small package."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kifu.envs.repositories.bugs import BugMaker, Difficulty
from kifu.envs.repositories.packages import PACKAGES, Package, fetch_package, unpack
from kifu.errors import ArgumentError, UsageError
from kifu.sandbox import Limits, Tree
from kifu.verify import suite_workshop

CODE = """\
def clamp(x, low, high):
    if x < low:
        return low
    return high if x > high else x


def unused(x):
    return x + 1
"""
TESTS = """\
from helper import BIG
from small import clamp


def test_low():
    assert clamp(-1, 0, BIG) == 0


def test_high():
    assert clamp(11, 0, BIG) == 10


def test_between():
    assert [clamp(x, 0, BIG) for x in (0, 5, 10)] == [0, 5, 10]


def test_never():
    assert clamp(1, 0, 2) == 7
"""
FILES = {
    "src/small/__init__.py": CODE,
    "tests/helper.py": "BIG = 10\n",
    "tests/test_small.py": TESTS,
    "setup.py": "raise SystemExit('nobody runs this')\n",
    "conftest.py": "raise SystemExit\n",
    "README.md": "small\n",
}


def _archive(files: dict[str, str], *, top: str = "small-1.0") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


ARCHIVE = _archive(FILES)
SMALL = Package(
    name="small",
    version="1.0",
    file="small-1.0.tar.gz",
    sha256=hashlib.sha256(ARCHIVE).hexdigest(),
    licence="MIT",
    sources=("src/small/**/*.py",),
    tests=("tests/**/*.py",),
    roots=("src",),
    test_roots=("", "tests"),
)


@pytest.fixture(scope="module")
def maker() -> Iterator[BugMaker]:
    """Plants bugs in the small package."""
    with suite_workshop(slot=5, limits=Limits(wall_s=120.0, cpu_s=20, output_keep_bytes=1 << 20)) as workshop:
        made = BugMaker(unpack(SMALL, ARCHIVE), workshop=workshop)
        yield made
        made.close()


def test_a_policy_gets_code_and_notes_and_the_judge_the_tests() -> None:
    found = unpack(SMALL, ARCHIVE)
    assert sorted(found.code.files) == ["README.md", "src/small/__init__.py"]
    assert sorted(found.tests.files) == ["tests/helper.py", "tests/test_small.py"]
    assert list(found.sources) == ["src/small/__init__.py"]


def test_only_tests_that_pass_on_the_original_count(maker: BugMaker) -> None:
    assert maker.passing == tuple(f"tests/test_small.py::test_{name}" for name in ("between", "high", "low"))


def test_a_bug_fails_what_it_says_and_its_original_passes_all(maker: BugMaker) -> None:
    bugs = {seed: maker.make(seed) for seed in range(3)}
    kept = [bug for bug in bugs.values() if bug is not None]
    assert kept
    for bug in kept:
        assert {*bug.fail_to_pass} | {*bug.pass_to_pass} == {*maker.passing}
        expected = (*bug.fail_to_pass, *bug.pass_to_pass)
        assert maker.judge.judge(Tree(), expected=expected).reward == 1.0
        assert maker.judge.judge(maker.broken(bug.mutations), expected=expected).reward == 0.0
        assert maker.make(bug.seed) == bug


def test_a_bug_that_no_test_notices_is_no_task(maker: BugMaker) -> None:
    """Arithmetic stands only in the function that nothing tests."""
    assert maker.make(0, Difficulty(kinds=("arithmetic",))) is None


def test_more_bugs_than_functions_are_no_task(maker: BugMaker) -> None:
    assert maker.make(0, Difficulty(count=3)) is None


def test_attack_by_another_archive_is_refused() -> None:
    with pytest.raises(ArgumentError, match="SHA-256"):
        unpack(SMALL, ARCHIVE + b"x")
    hostile = _archive({"../../x": "x", **FILES})
    with pytest.raises(ArgumentError):
        unpack(replace(SMALL, sha256=hashlib.sha256(hostile).hexdigest()), hostile)


def test_an_archive_without_its_tests_is_refused() -> None:
    bare = _archive({path: text for path, text in FILES.items() if not path.startswith("tests")})
    with pytest.raises(ArgumentError, match="its archive holds no"):
        unpack(replace(SMALL, sha256=hashlib.sha256(bare).hexdigest()), bare)


def test_attack_by_a_swapped_file_in_the_cache_is_found(tmp_path: Path) -> None:
    (tmp_path / PACKAGES["parse"].file).write_bytes(b"other")
    with pytest.raises(UsageError, match="remove the file"):
        fetch_package("parse", folder=tmp_path)


def test_packages_that_are_held_out_are_never_trained_on() -> None:
    splits = {name: package.split for name, package in PACKAGES.items()}
    assert sorted(set(splits.values())) == ["held_out", "train"]
    assert sum(split == "train" for split in splits.values()) >= 4
    with pytest.raises(UsageError, match="no package `tabulat`; did you mean `tabulate`"):
        fetch_package("tabulat")


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_bugs_of_real_packages_pay_their_original_and_not_themselves(name: str) -> None:
    with suite_workshop(slot=6) as workshop:
        made = BugMaker(unpack(PACKAGES[name], fetch_package(name).read_bytes()), workshop=workshop)
        bug = made.make(1)
        assert bug is not None
        expected = (*bug.fail_to_pass, *bug.pass_to_pass)
        assert made.judge.judge(Tree(), expected=expected).reward == 1.0
        assert made.judge.judge(made.broken(bug.mutations), expected=expected).reward == 0.0
        made.close()
