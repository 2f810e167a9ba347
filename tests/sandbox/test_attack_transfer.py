"""Attacks on what goes into a box and what comes out of it: links, archives, patches, arguments, names."""

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Protocol

import pytest

from kifu.errors import ArgumentError
from kifu.sandbox import (
    Choice,
    Denied,
    Entry,
    PatchError,
    RelPath,
    RunTool,
    Slot,
    Text,
    Tree,
    Whole,
    patched,
    read_patch,
)
from kifu.sandbox.tools import ValueKind, check_arguments


class World(Protocol):
    def ask(self, op: str, **request: object) -> dict[str, object]: ...


LINKS_OUT = {
    "a link to a file": ("os.symlink('/p/cpuinfo', 'out.txt')", "out.txt"),
    "a link to a folder": ("os.symlink('/p', 'out')", "out/*"),
    "a link to the boxes of others": ("os.symlink('/b', 'out')", "out/**"),
    "a link that goes up": ("os.symlink('../../../p/cpuinfo', 'out.txt')", "*.txt"),
}


@pytest.mark.parametrize("name", LINKS_OUT)
def test_attack_on_an_export_is_held(world: World, name: str) -> None:
    prepare, pattern = LINKS_OUT[name]
    given = {"codes": [f"import os\n{prepare}"], "patterns": [pattern], "max_bytes": 16 << 20}

    assert world.ask("export", without=[], **given)["files"] == {}
    assert world.ask("export", without=["no_follow"], **given)["files"] != {}


LINKS_IN = {
    "a link in place of a folder": ("os.symlink('/l', 'd')", {"d/x": "new"}),
    "a link in place of a file": ("os.symlink('/l/y', 'x')", {"x": "new"}),
}


@pytest.mark.parametrize("name", LINKS_IN)
def test_attack_on_files_written_into_a_box_is_held(world: World, name: str) -> None:
    """Held: the file is where it was put, or was refused. Otherwise it went through the link and is not in the box."""
    prepare, put = LINKS_IN[name]
    given = {"codes": [f"import os\n{prepare}"], "put": put}

    held = world.ask("put", without=[], **given)
    assert held["denied"] or held["files"] == put
    control = world.ask("put", without=["safe_paths"], **given)
    assert not control["denied"]
    assert control["files"] == {}


def test_attack_by_a_pipe_in_the_way_of_an_export_does_not_hang(world: World) -> None:
    found = world.ask("export", without=[], codes=["import os\nos.mkfifo('out.txt')"], patterns=["*"])
    assert found["files"] == {}
    assert found["refused"] == [["out.txt", "no regular file"]]


def test_attack_by_names_that_are_no_text_is_reported(world: World) -> None:
    code = "open(b'a\\nb', 'w').close()\nopen(b'\\xff', 'w').close()\nopen('good', 'w').write('x')"
    found = world.ask("export", without=[], codes=[code], patterns=["**"])
    assert found["files"] == {"good": "x"}
    assert sorted(found["refused"]) == [  # type: ignore[call-overload]
        ["\\xff", "the name is not plain UTF-8 text"],
        ["a\nb", "the name is not plain UTF-8 text"],
    ]


def test_attack_by_folders_three_thousand_deep_is_reported(world: World) -> None:
    code = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'w').close()"
    found = world.ask("export", without=[], codes=[code], patterns=["**"])
    assert found["files"] == {}
    assert found["complete"] is False


def test_attack_by_removing_through_a_link_is_refused(world: World) -> None:
    code = "import os\nos.mkdir('real')\nopen('real/x', 'w').write('kept')\nos.symlink('real', 'd')"
    answer = world.ask("put", without=[], codes=[code], put={}, gone=["d/x"])
    assert "no plain folder" in str(answer["denied"])
    assert answer["files"] == {"real/x": "kept"}


def _tar(*members: tuple[str, bytes, bytes, str]) -> bytes:
    """Members: name, type, data, target of a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, data, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), target
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


FILE, LINK, HARD, PIPE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
TARS = {
    "goes up": _tar(("../planted", FILE, b"x", "")),
    "goes up inside": _tar(("a", tarfile.DIRTYPE, b"", ""), ("a/../../planted", FILE, b"x", "")),
    "writes through its own link": _tar(("d", LINK, b"", ".."), ("d/planted", FILE, b"x", "")),
    "links to a file outside": _tar(("planted", LINK, b"", "../secret")),
    "links hard to a file outside": _tar(("planted", HARD, b"", "../secret")),
    "holds a pipe": _tar(("planted", PIPE, b"", "")),
}


@pytest.mark.parametrize("name", TARS)
def test_attack_by_an_archive_that_is_refused(tmp_path: Path, name: str) -> None:
    """The control: Python's own unpacking, told to trust the archive, does what it wants."""
    inside = tmp_path / "box"
    inside.mkdir()
    (tmp_path / "secret").write_text("outside")
    with tarfile.open(fileobj=io.BytesIO(TARS[name])) as archive:
        archive.extractall(inside, filter="fully_trusted")
    reached = (tmp_path / "planted").exists() or (inside / "planted").exists()
    assert reached

    with pytest.raises(ArgumentError):
        Tree.from_archive(TARS[name])


def _zip(name: str, data: bytes, *, is_link: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777 if is_link else stat.S_IFREG | 0o644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _zip("../planted", b"x"),
        _zip("/planted", b"x"),
        _zip("planted", b"../../secret", is_link=True),
        _zip("bomb", bytes(2 << 20)),
        gzip.compress(_tar(("bomb", FILE, bytes(2 << 20), ""))),
        _tar(*((f"f{number}", FILE, b"", "") for number in range(60))),
        b"no archive at all",
    ],
    ids=["zip goes up", "zip absolute", "zip link", "zip bomb", "gzip bomb", "many files", "nonsense"],
)
def test_attack_by_an_archive_beyond_its_caps_is_refused(data: bytes) -> None:
    with pytest.raises(ArgumentError):
        Tree.from_archive(data, max_files=50, max_bytes=1 << 20)


def test_an_honest_archive_is_read() -> None:
    data = _tar(("a", tarfile.DIRTYPE, b"", ""), ("a/b.txt", FILE, b"text", ""), ("a/c", LINK, b"", "b.txt"))
    for packed in (data, gzip.compress(data)):
        tree = Tree.from_archive(packed)
        assert tree.files == {"a/b.txt": b"text"}
        assert [(item.path, item.kind) for item in tree.entries] == [
            ("a", "folder"),
            ("a/b.txt", "file"),
            ("a/c", "link"),
        ]
    assert Tree.from_archive(_zip("x/y.txt", b"text")).files == {"x/y.txt": b"text"}


PATCH = "--- a/{name}\n+++ b/{name}\n@@ -0,0 +1 @@\n+planted\n"
PATCHES = {
    "goes up": PATCH.format(name="../planted"),
    "is absolute": PATCH.format(name="/planted").replace("a//", "/").replace("b//", "/"),
    "plants a hook of git": PATCH.format(name=".git/hooks/pre-commit"),
    "plants a hook under another spelling": PATCH.format(name="sub/.GIT/config"),
    "makes a link": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n",
    "makes a submodule": "diff --git a/s b/s\nnew file mode 160000\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+x\n",
    "is binary": "diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 1\n",
    "ends early": "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n line\n",
    "is none": "hello\n",
}


@pytest.mark.parametrize("name", PATCHES)
def test_attack_by_a_patch_is_refused(name: str) -> None:
    with pytest.raises(PatchError):
        read_patch(PATCHES[name])


def test_attack_by_a_patch_would_leave_the_box_without_the_check(tmp_path: Path) -> None:
    """The control: joining the path a patch names to the box's folder is not enough."""
    inside = tmp_path / "box"
    inside.mkdir()
    (inside / "../planted").write_text("planted")
    assert (tmp_path / "planted").exists()
    assert os.path.normpath(inside / "/planted") == "/planted"


def test_a_patch_that_does_not_fit_changes_nothing() -> None:
    present = Tree.of({"a": "1\n2\n", "b": "1\n"})
    patch = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-9\n+8\n"
    with pytest.raises(PatchError, match="b: hunk 1 does not fit at or near line 1"):
        patched(present, read_patch(patch))


ARGUMENTS: dict[str, tuple[ValueKind, object]] = {
    "an option in place of a text": (Text(), "--exec=rm"),
    "an option in place of a path": (RelPath(), "-rf"),
    "a path that goes up": (RelPath(), "a/../../b"),
    "an absolute path": (RelPath(), "/etc/passwd"),
    "a path beside the allowed folder": (RelPath(under="src"), "srcs/x"),
    "another ending": (RelPath(suffixes=(".py",)), "x.py.sh"),
    "a null character": (Text(), "a\0b"),
    "half a character": (Text(), "\ud800"),
    "a text too long": (Text(max_chars=3), "abcd"),
    "a second line after the form": (Text(pattern="[a-z]+"), "abc\nrm"),
    "a choice not offered": (Choice(options=("a", "b")), "c"),
    "a truth in place of a number": (Whole(low=0, high=9), True),
    "a number too large": (Whole(low=0, high=9), 10),
    "a list in place of a text": (Text(), ["a"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_attack_by_an_argument_is_refused(name: str) -> None:
    kind, value = ARGUMENTS[name]
    tool = RunTool(name="t", argv=("/bin/echo", Slot(name="x", kind=kind)))
    with pytest.raises(Denied):
        check_arguments(tool, {"x": value})


def test_attack_by_an_unknown_argument_is_refused() -> None:
    tool = RunTool(name="t", argv=("/bin/echo",))
    with pytest.raises(Denied, match="no argument"):
        check_arguments(tool, {"env": "LD_PRELOAD=x"})


def test_a_file_with_a_path_that_leads_out_cannot_be_made() -> None:
    for path in ("../x", "/x", "a//b", "a/./b", "", "a\0b", "/".join("d" * 200), "x" * 300):
        with pytest.raises(ArgumentError):
            Entry(path=path)


def test_attack_by_options_would_pass_where_a_tool_allows_it() -> None:
    """The control of the first refusal: with options allowed the text reaches the program as it is."""
    tool = RunTool(name="t", argv=("/bin/echo", Slot(name="x", kind=Text(may_be_option=True))))
    assert check_arguments(tool, {"x": "--exec=rm"}) == {"x": ("--exec=rm",)}
