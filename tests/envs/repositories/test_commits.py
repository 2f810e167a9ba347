"""Change records are mined from repositories that git makes here; git also says what each record must be."""

import os
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kifu.envs.repositories.commits import Filters, HeldOut, Why, mine_commits
from kifu.envs.suites.swe_rl import changes
from kifu.errors import UsageError
from kifu.verify import swe_rl_reward

LONG = "The sum was one too small for every input."
DAY = 86_400


class Repository:
    """A folder in which git commits; dates are days since 2001-09-09."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, day: int = 0) -> bytes:
        date = f"{1_000_000_000 + day * DAY} +0000"
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        clean = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
        env = {**clean, **names, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        return subprocess.run(["git", *words], cwd=self.folder, env=env, check=True, capture_output=True).stdout

    def commit(self, files: Mapping[str, str | bytes | None], message: str | bytes = LONG, *, day: int = 0) -> str:
        for path, data in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                place.unlink()
            else:
                place.write_bytes(data.encode() if isinstance(data, str) else data)
        self.git("add", "-A")
        said = self.folder / ".git" / "said"
        said.write_bytes(message.encode() if isinstance(message, str) else message)
        self.git("commit", "-q", "--allow-empty", "--cleanup=verbatim", "-F", str(said), day=day)
        return self.git("rev-parse", "HEAD").decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One commit: two modules and a note."""
    made = Repository(tmp_path / "world")
    made.commit({"a.py": "def f(x):\n    return x + 1\n", "lib/b.py": "one\r\ntwo", "README": "words\n"})
    return made


def test_a_record_is_what_git_says_the_commit_is(repository: Repository, tmp_path: Path) -> None:
    """Git makes the patch of the record's files and git applies it: the files after are the oracle's."""
    edits: tuple[dict[str, str | bytes | None], ...] = (
        {"a.py": "def f(x):\n    return x + 2\n", "README": "other words\n", "tests/test_a.py": "assert f(1) == 3\n"},
        {"a.py": "def f(x):\n    return x + 3\n\n\n# f", "lib/b.py": "one\r\n2\r\nthree\r\n"},
    )
    people = "Co-Authored-By: A <a@b>\nSigned-off-by: B <b@c>\n"
    ids = [repository.commit(edit, f"{LONG}\n\nNo {at}: \u00e4\n\n{people}") for at, edit in enumerate(edits)]
    mined = mine_commits({"own": repository.folder})
    assert [record["id"] for record in mined.records] == [f"own@{name}" for name in ids]
    assert mined.records[1]["problem"] == f"{LONG}\n\nNo 1: \u00e4"
    assert mined.dropped == {Why.FIRST: 1}
    for at, (name, record) in enumerate(zip(ids, mined.records, strict=True)):
        files, oracle = texts(record["files"]), texts(record["oracle"])
        place = tmp_path / f"apply{at}"
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(text.encode())
        patch = tmp_path / f"{at}.patch"
        patch.write_bytes(repository.git("diff", f"{name}~1", name, "--", *files))
        subprocess.run(["git", "apply", "--whitespace=nowarn", patch], cwd=place, check=True, capture_output=True)
        assert {path: (place / path).read_bytes().decode() for path in files} == oracle
    assert list(texts(mined.records[0]["files"])) == ["a.py"]


def test_the_file_is_one_that_the_environment_takes_and_the_oracle_earns_one(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"a.py": "def f(x):\n    return x + 2\n"})
    repository.commit({"lib/b.py": "one\r\ntwo\r\n"})
    mined = mine_commits({"own": repository.folder})
    mined.write(tmp_path / "records.jsonl")
    environment = changes(tmp_path / "records.jsonl")
    tasks = list(environment.tasks("train", 0))
    assert [task.id for task in tasks] == [record["id"] for record in mined.records]
    for task in tasks:
        answer = str(environment.demonstrate(task)[0])
        found = swe_rl_reward(answer, files=texts(task.data["files"]), oracle=texts(task.data["oracle"]))
        assert found.reward == 1.0
    with pytest.raises(UsageError, match="exists already"):
        mined.write(tmp_path / "records.jsonl")


def test_every_commit_that_is_no_record_is_counted_under_its_reason(repository: Repository) -> None:
    big = "".join(f"line {at}\n" for at in range(60))
    repository.commit({"a.py": "x = 1\n"}, "short\n\nReviewed-by: Somebody With A Long Name <a@b>")
    latin = repository.commit({"a.py": "x = 2\n"}, "This was written in Latin-1: \u00e4\u00f6\u00fc, by hand")
    raw = repository.git("cat-file", "commit", latin).decode().encode("latin-1")
    (repository.folder / ".git" / "raw").write_bytes(raw)
    found = repository.git("hash-object", "-t", "commit", "-w", ".git/raw").decode().strip()
    repository.git("update-ref", "HEAD", found)
    repository.commit({"README": "no code\n", "vendor/a.py": "x\n", "tests/a.py": "x\n"})
    repository.commit({"new.py": "x\n"})
    repository.commit({"new.py": None})
    repository.commit({"c.py": "c\n", "d.py": "d\n", "e.py": "e\n"})
    repository.commit({"a.py": "1\n", "c.py": "1\n", "d.py": "1\n", "e.py": "1\n"})
    repository.commit({"a.py": big})
    repository.commit({"a.py": b"# \xff\n"})
    repository.commit({"a.py": b"nul \0\n"})
    repository.commit({"a.py": "x" * 10_000_000})
    repository.commit({"a.py": "x = 3\n"})
    (repository.folder / "a.py").chmod(0o755)
    repository.commit({})
    repository.git("checkout", "-q", "-b", "side")
    repository.commit({"a.py": "x = 4\n"})
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", LONG, "side")
    mined = mine_commits({"own": repository.folder}, filters=Filters(lines=50))
    assert mined.dropped == {
        Why.MERGE: 1,
        Why.FIRST: 1,
        Why.MESSAGE: 2,
        Why.NO_SOURCE: 1,
        Why.NOT_EDITED: 4,
        Why.MANY_FILES: 1,
        Why.LARGE: 2,
        Why.BINARY: 2,
        Why.MANY_LINES: 1,
    }
    assert [texts(record["oracle"]) for record in mined.records] == [{"a.py": "x = 4\n"}]
    assert mined.seen == int(repository.git("rev-list", "--count", "HEAD"))


def test_names_that_cannot_be_written_and_links_are_no_edits(repository: Repository) -> None:
    odd = os.fsdecode(b"\xff.py")
    repository.commit({odd: "x\n"})
    (repository.folder / "link.py").symlink_to("/etc/passwd")
    repository.commit({odd: "y\n"})
    (repository.folder / "link.py").unlink()
    (repository.folder / "link.py").symlink_to("/etc/shadow")
    repository.commit({})
    mined = mine_commits({"own": repository.folder})
    assert (mined.records, mined.dropped) == ((), {Why.FIRST: 1, Why.NOT_EDITED: 3})


def test_what_is_committed_on_top_of_something_held_out_is_held_out_whatever_its_date(repository: Repository) -> None:
    for day, text in ((1, "1"), (5, "2"), (2, "3")):
        repository.commit({"a.py": f"x = {text}\n"}, day=day)
    repository.git("checkout", "-q", "-b", "side", "HEAD~2")
    repository.commit({"lib/b.py": "one\r\n2"}, day=3)
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "-m", LONG, "side", day=6)
    since = datetime.fromtimestamp(1_000_000_000 + 4 * DAY, UTC)
    mined = mine_commits({"own": repository.folder}, held_out=HeldOut(since=since))
    split = {str(texts(record["oracle"])): record["split"] for record in mined.records}
    assert split == {
        "{'a.py': 'x = 1\\n'}": "train",
        "{'lib/b.py': 'one\\r\\n2'}": "train",
        "{'a.py': 'x = 2\\n'}": "held_out",
        "{'a.py': 'x = 3\\n'}": "held_out",
    }


def test_a_repository_can_be_held_out_whole_and_a_change_in_both_is_no_second_record(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"a.py": "def f(x):\n    return x + 2\n"})
    other = Repository(tmp_path / "other")
    other.commit({"a.py": "def f(x):\n    return x + 1\n", "z.py": "z\n"})
    other.commit({"a.py": "def f(x):\n    return x + 2\n"}, "The same change, as a fork of it would have it.")
    other.commit({"z.py": "y\n"})
    both = {"own": repository.folder, "other": other.folder}
    mined = mine_commits(both, held_out=HeldOut(repositories=frozenset({"other"})))
    assert [(record["family"], record["split"]) for record in mined.records] == [
        ("own", "train"),
        ("other", "held_out"),
    ]
    assert mined.dropped[Why.KNOWN] == 1
    assert mine_commits(both, held_out=HeldOut(repositories=frozenset({"other"}))) == mined
    with pytest.raises(UsageError, match="no repository 'others' among own, other"):
        mine_commits(both, held_out=HeldOut(repositories=frozenset({"others"})))


HOSTILE = """
[core]
repositoryformatversion = 1
hooksPath = {folder}
fsmonitor = {program}
sshCommand = {program}
pager = {program}
[extensions]
partialClone = origin
[remote "origin"]
url = ext::{program}
promisor = true
[protocol "ext"]
allow = always
[diff]
external = {program}
[diff "own"]
command = {program}
textconv = {program}
[filter "own"]
smudge = {program}
[log]
showSignature = true
[gpg]
program = {program}
[alias]
log = !{program}
cat-file = !{program}
"""


@pytest.mark.parametrize("control", [("show", "--ext-diff"), ("log", "-p", "--textconv"), ("cat-file", "-p", "gone")])
def test_attack_no_program_that_a_repository_names_runs_or_steers_what_is_read(
    repository: Repository, tmp_path: Path, control: tuple[str, ...]
) -> None:
    """The control: plain git on the same repository runs the program."""
    repository.commit({"a.py": "x = 1\n"}, day=1)
    gone = repository.git("rev-parse", "HEAD:a.py").decode().strip()
    repository.commit({"lib/b.py": "x = 2\n"}, day=2)
    (repository.folder / ".git" / "objects" / gone[:2] / gone[2:]).unlink()
    sound = mine_commits({"own": repository.folder})
    repository.git("replace", "HEAD", "HEAD~1")
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho changed\n")
    program.chmod(0o755)
    (repository.folder / ".git" / "info").mkdir(exist_ok=True)
    (repository.folder / ".git" / "info" / "attributes").write_text("*.py diff=own filter=own\n")
    with (repository.folder / ".git" / "config").open("a") as config:
        config.write(HOSTILE.format(program=program, folder=tmp_path))
    words = [gone if word == "gone" else word for word in control]
    subprocess.run(["git", *words], cwd=repository.folder, check=False, capture_output=True, timeout=20)
    assert ran.exists()
    ran.unlink()
    assert mine_commits({"own": repository.folder}) == sound
    assert (len(sound.records), sound.dropped[Why.MISSING]) == (1, 1)
    assert not ran.exists()


def test_attack_objects_are_not_borrowed_and_links_out_of_the_folder_are_not_followed(
    repository: Repository, tmp_path: Path
) -> None:
    """A repository without objects of its own that points at another: git alone would read that one."""
    repository.commit({"a.py": "x = 1\n"})
    thief = Repository(tmp_path / "thief")
    (thief.folder / ".git" / "objects" / "info" / "alternates").write_text(f"{repository.folder}/.git/objects\n")
    head = repository.git("rev-parse", "HEAD").decode()
    (thief.folder / ".git" / "refs" / "heads" / "main").write_text(head)
    assert thief.git("log", "--format=%B").decode().startswith(LONG)
    with pytest.raises(UsageError, match="repository own: git cannot read its commits"):
        mine_commits({"own": thief.folder})
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(repository.folder / ".git")
    with pytest.raises(UsageError, match="leads elsewhere"):
        mine_commits({"own": linked})
    bare = tmp_path / "bare"
    (bare / "refs").mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "objects").symlink_to(repository.folder / ".git" / "objects")
    with pytest.raises(UsageError, match="git cannot read its commits"):
        mine_commits({"own": bare})


def empty(repository: Repository) -> None:
    repository.git("update-ref", "-d", "HEAD")


def headless(repository: Repository) -> None:
    (repository.folder / ".git" / "HEAD").write_text("ref: ../../etc/passwd\n")


def stored_nowhere(repository: Repository) -> None:
    for path in (repository.folder / ".git" / "objects").glob("??/*"):
        path.unlink()


@pytest.mark.parametrize("damage", [empty, headless, stored_nowhere])
def test_a_damaged_repository_is_told(repository: Repository, damage: Callable[[Repository], None]) -> None:
    damage(repository)
    with pytest.raises(UsageError, match="repository own: git cannot read its commits: "):
        mine_commits({"own": repository.folder})


def test_a_file_that_the_store_lacks_costs_its_commit_alone(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a.py": "x = 1\n"})
    gone = repository.git("rev-parse", "HEAD:a.py").decode().strip()
    repository.commit({"lib/b.py": "1\n"})
    (repository.folder / ".git" / "objects" / gone[:2] / gone[2:]).unlink()
    mined = mine_commits({"own": repository.folder})
    assert [list(texts(record["files"])) for record in mined.records] == [["lib/b.py"]]
    assert mined.dropped[Why.MISSING] == 1
    with pytest.raises(UsageError, match="is no git repository"):
        mine_commits({"own": tmp_path})


def texts(value: Any) -> dict[str, str]:  # noqa: ANN401  # JSON
    assert isinstance(value, dict)
    return {str(path): str(text) for path, text in value.items()}
