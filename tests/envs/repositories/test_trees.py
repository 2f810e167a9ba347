"""A folder becomes a value without a link being followed."""

import os
from pathlib import Path

import pytest

from kifu.envs.repositories.trees import TreeLimits, read_tree
from kifu.errors import UsageError


def test_files_come_by_path_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.sh").write_text("echo\n")
    (tmp_path / "b" / "x.sh").chmod(0o755)
    (tmp_path / "a.bin").write_bytes(b"\xff")

    found = read_tree(tmp_path)

    assert list(found) == ["a.bin", "b/x.sh"]
    assert found["b/x.sh"].executable
    assert found["b/x.sh"].text == "echo\n"
    assert found["a.bin"].text is None


@pytest.mark.parametrize("kind", ["file link", "folder link", "dangling link", "pipe", "git"])
def test_attack_by_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    tree, secret = tmp_path / "tree", tmp_path / "secret"
    tree.mkdir()
    secret.mkdir()
    (secret / "key").write_text("secret")
    if kind == "pipe":
        os.mkfifo(tree / "x")
    elif kind == "git":
        (tree / ".git").mkdir()
        (tree / ".git" / "config").write_text("[core]\nfsmonitor = evil\n")
    else:
        goal = {"file link": secret / "key", "folder link": secret, "dangling link": secret / "no"}[kind]
        (tree / "x").symlink_to(goal)

    with pytest.raises(UsageError, match=r"links are not followed|stays inside its tree"):
        read_tree(tree)


def test_attack_by_size_count_and_depth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"x" * 100)
    (tmp_path / "g").write_bytes(b"x" * 100)
    for limits in (TreeLimits(bytes=199), TreeLimits(files=1)):
        with pytest.raises(UsageError, match="holds more than"):
            read_tree(tmp_path, limits=limits)
    with pytest.raises(UsageError, match="deeper than 1 folders"):
        read_tree(tmp_path, limits=TreeLimits(depth=1))
    assert len(read_tree(tmp_path, limits=TreeLimits(bytes=200, files=2, depth=2))) == 2


def test_attack_by_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff")).write_text("x")
    with pytest.raises(UsageError, match="stays inside its tree"):
        read_tree(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder that can be read: No such file"):
        read_tree(tmp_path / "no")
