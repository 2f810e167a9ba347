"""Unified diffs are read strictly, and applied as git applies them."""

import random
import subprocess
from pathlib import Path

import pytest

from kifu.sandbox.patches import (
    FilePatch,
    Hunk,
    PatchError,
    apply_patch,
    patched,
    read_patch,
    reversed_patch,
    tree_path,
)
from kifu.sandbox.tree import Entry, Kind, Tree

ADD = """\
diff --git a/lib/sum.py b/lib/sum.py
index 83db48f..bf2b7a1 100644
--- a/lib/sum.py
+++ b/lib/sum.py
@@ -1,3 +1,3 @@ def head():
 def add(a, b):
-    return a - b
+    return a + b
{}
""".format(" ")
BEFORE = "def add(a, b):\n    return a - b\n\n"
AFTER = "def add(a, b):\n    return a + b\n\n"

_LINES = ("", "a", "b", "c", "-- x", "+y", "\x0c", "\u2028z", "d\r", "\\ e")


def _texts(rng: random.Random) -> tuple[str, str]:
    """Two texts with common stretches; either may lack its last line end, or be empty."""
    old = [rng.choice(_LINES) for _ in range(rng.randrange(24))]
    new = [line for line in old if rng.random() < 0.8]
    for _ in range(rng.randrange(4)):
        new.insert(rng.randint(0, len(new)), rng.choice(_LINES))
    ends = [rng.choice(("", "\n")) if lines else "" for lines in (old, new)]
    return "\n".join(old) + ends[0], "\n".join(new) + ends[1]


def test_what_git_writes_is_applied_and_undone_exactly(tmp_path: Path) -> None:
    """300 pairs of texts; git is the oracle of what their difference is."""
    rng = random.Random(7)
    sides: list[dict[str, str]] = [{}, {}]
    for at in range(300):
        for name, side, text in zip(("a", "b"), sides, _texts(rng), strict=True):
            side[f"f{at}"] = text
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"f{at}").write_bytes(text.encode())
    command = ["git", "-c", "core.autocrlf=false", "diff", "--no-index", "--no-ext-diff", "--text", "--no-prefix"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run([*command, "a", "b"], cwd=tmp_path, capture_output=True, check=False, env=environment)
    changed = {path for path in sides[0] if sides[0][path] != sides[1][path]}
    before, after = ({path: text for path, text in side.items() if path in changed} for side in sides)

    patch = read_patch(done.stdout.decode())

    assert len(changed) > 200
    assert apply_patch(sides[0], patch) == after
    assert apply_patch(sides[1], reversed_patch(patch)) == before


def test_the_parts_of_a_patch_are_those_written() -> None:
    hunk = Hunk(
        start=1,
        before=("def add(a, b):\n", "    return a - b\n", "\n"),
        after=("def add(a, b):\n", "    return a + b\n", "\n"),
    )
    assert read_patch(ADD) == (FilePatch(old="lib/sum.py", new="lib/sum.py", hunks=(hunk,)),)


def test_a_hunk_is_found_where_its_lines_have_moved_to() -> None:
    moved = "# one\n# two\n" + BEFORE
    assert apply_patch({"lib/sum.py": moved}, read_patch(ADD)) == {"lib/sum.py": "# one\n# two\n" + AFTER}


def test_of_two_equal_places_the_nearer_is_taken() -> None:
    far = BEFORE + "#\n" * 20 + BEFORE
    patch = read_patch(ADD.replace("@@ -1,3 +1,3 @@", "@@ -22,3 +22,3 @@"))
    assert apply_patch({"lib/sum.py": far}, patch) == {"lib/sum.py": BEFORE + "#\n" * 20 + AFTER}


def test_files_are_made_and_removed() -> None:
    text = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n+++ b/new.py\n"
        "@@ -0,0 +1 @@\n+x = 1\n"
        "diff --git a/old.py b/old.py\ndeleted file mode 100644\nindex 1..0000000\n--- a/old.py\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-y = 2\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
    )
    patch = read_patch(text)
    assert apply_patch({"old.py": "y = 2\n"}, patch) == {"new.py": "x = 1\n", "old.py": None, "empty": ""}
    with pytest.raises(PatchError, match=r"new\.py: is to be made and exists already"):
        apply_patch({"old.py": "y = 2\n", "new.py": ""}, patch)
    with pytest.raises(PatchError, match=r"old\.py: is to be removed, and 2 characters"):
        apply_patch({"old.py": "y = 2\n# "}, patch)


def test_modes_follow_the_patch_or_stay_and_bytes_that_are_no_text_survive() -> None:
    start = Tree(
        (
            Entry(path="run", data=b"\xff\na\n", is_executable=True),
            Entry(path="plain", data=b"a\n"),
            Entry(path="gone", data=b"a\n"),
            Entry(path="other", data=b"a\n"),
        )
    )
    change = "--- a/{0}\n+++ b/{0}\n@@ -{1} +{1} @@\n-a\n+b\n"
    text = (
        f"diff --git a/run b/run\n{change.format('run', 2)}"
        f"diff --git a/plain b/plain\nold mode 100644\nnew mode 100755\n{change.format('plain', 1)}"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
        "diff --git a/made b/made\nnew file mode 100755\n--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+a\n"
    )
    assert patched(start, read_patch(text)) == Tree(
        (
            Entry(path="run", data=b"\xff\nb\n", is_executable=True),
            Entry(path="plain", data=b"b\n", is_executable=True),
            Entry(path="gone", kind=Kind.GONE),
            Entry(path="made", data=b"a\n", is_executable=True),
        )
    )


def test_a_patch_that_does_not_fit_names_file_and_hunk() -> None:
    with pytest.raises(PatchError, match=r"lib/sum\.py: hunk 1 does not fit at or near line 1"):
        apply_patch({"lib/sum.py": AFTER}, read_patch(ADD))
    with pytest.raises(PatchError, match=r"lib/sum\.py: does not exist"):
        apply_patch({}, read_patch(ADD))


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/passwd", "a/../../x", ".git/hooks/pre-commit", "a/.GIT/config", "a//b", "./a", "", "a\\b"),
        *("a\nb", "a\0b", "x" * 256, "\ud800", "a/" * 80 + "b"),
    ],
)
def test_attack_by_path_is_refused(path: str) -> None:
    with pytest.raises(PatchError, match="stays inside its tree"):
        tree_path(path, where="here")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ADD.replace("lib/sum.py", "../../sum.py"), "stays inside its tree"),
        (ADD.replace("lib/sum.py", ".git/config"), "stays inside its tree"),
        (ADD.replace("+++ b/lib/sum.py", "+++ b/.bashrc"), "are not the files of the header"),
        (ADD.replace("index 83db48f..bf2b7a1 100644", "new file mode 120000"), "links and submodules"),
        (ADD.replace("index 83db48f..bf2b7a1 100644", "new file mode 160000"), "links and submodules"),
        (ADD.replace("index 83db48f..bf2b7a1 100644", "rename from lib/a.py"), "renames and copies"),
        (ADD.replace("@@ -1,3 +1,3 @@", "@@ -1,30 +1,3 @@"), "inside a hunk that wants more lines"),
        (ADD.replace("@@ -1,3 +1,3 @@", "@@ -1,1 +1,1 @@"), "expected a hunk, a header or the end"),
        (ADD.replace("@@ -1,3 +1,3 @@", "@@ -1,99999999999 +1,3 @@"), "expected @@"),
        (ADD + ADD, "changes lib/sum.py twice"),
        (ADD + "\nrm -rf /\n", "expected a hunk, a header or the end"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "binary content"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary content"),
        ("--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\n", "both sides"),
        ("".join(f"--- a/{at}\n+++ b/{at}\n@@ -1 +1 @@\n-a\n+b\n" for at in range(501)), "changes 501 files"),
        ("hello", "no file is changed"),
        ("", "no file is changed"),
        ("x" * 4_000_001, "characters, 4,000,000 are read"),
    ],
)
def test_attack_by_patch_is_refused(text: str, words: str) -> None:
    with pytest.raises(PatchError) as found:
        read_patch(text)
    assert words in str(found.value)
