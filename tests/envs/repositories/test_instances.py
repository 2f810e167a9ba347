"""An instance of a sheet goes through `code_repair`: gold resolves, the empty patch does not, cheats are not paid."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kifu.envs import Task, resolve_environment
from kifu.envs.linting import lint_repair
from kifu.envs.repositories.instances import Instances, read_instances
from kifu.envs.repositories.repairs import edits
from kifu.envs.suites.code_repair import CodeRepair
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall
from kifu.sandbox import Tree, Wanted
from kifu.verify.cheats import CHEATS
from kifu.verify.program import ProgramJudge

FILES = {
    "calc/__init__.py": "",
    "calc/core.py": "def double(x):\n    return x + x + 1\n\n\ndef half(x):\n    return x / 2\n",
    "calc/extra.py": "NAME = 'calc'\n",
    "calc/conftest.py": "collect_ignore = []\n",
    "tests/__init__.py": "",
    "tests/test_core.py": (
        "import unittest\n\nfrom calc.core import half\n\n\nclass Old(unittest.TestCase):\n"
        "    def test_half(self):\n        self.assertEqual(half(4), 2)\n"
    ),
    "docs/long.txt": "left out\n",
}
GOLD = """\
diff --git a/calc/core.py b/calc/core.py
--- a/calc/core.py
+++ b/calc/core.py
@@ -1,2 +1,2 @@
 def double(x):
-    return x + x + 1
+    return x + x
diff --git a/calc/more.py b/calc/more.py
new file mode 100644
--- /dev/null
+++ b/calc/more.py
@@ -0,0 +1 @@
+LIMIT = 3
"""
TESTS = """\
diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,8 +1,14 @@
 import unittest

-from calc.core import half
+from calc.core import double, half


 class Old(unittest.TestCase):
     def test_half(self):
         self.assertEqual(half(4), 2)
+
+    def test_double(self):
+        self.assertEqual(double(4), 8)
+
+    def test_zero(self):
+        self.assertEqual(double(0), 0)
"""
IDS = [f"test_{name} (tests.test_core.Old.test_{name})" for name in ("double", "zero", "half")]
ROW = {
    "repo": "owner/calc",
    "instance_id": "owner__calc-1",
    "base_commit": "0" * 40,
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "double is off by one",
    "version": "1.0",
    "FAIL_TO_PASS": IDS[:2],
    "PASS_TO_PASS": IDS[2:],
}
SHEET = """
format = "swebench"
instances = "rows.json"
[instance.owner__calc-1]
source = "calc-1.0.tar.gz"
python = "/usr"
runner = "unittest"
sources = ["calc/**", "tests/**"]
"""


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sheet with one instance and everything it names."""
    folder = tmp_path_factory.mktemp("sheet")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in FILES.items():
            member = tarfile.TarInfo(f"calc-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    (folder / "calc-1.0.tar.gz").write_bytes(made.getvalue())
    (folder / "rows.json").write_text(json.dumps([ROW]))
    (folder / "sheet.toml").write_text(SHEET)
    return folder / "sheet.toml"


@pytest.fixture(scope="module")
def environment(sheet: Path) -> Iterator[type[CodeRepair]]:
    made = resolve_environment(f"code_repair@{sheet}")
    assert issubclass(made, CodeRepair)
    yield made
    assert isinstance(made.source, Instances)
    made.source.close()


@pytest.fixture
def task(environment: type[CodeRepair]) -> Task:
    (only,) = environment.tasks("train", 0)
    return only


def test_the_gold_patch_resolves_and_the_empty_one_does_not(environment: type[CodeRepair], task: Task) -> None:
    for calls, success in ((environment.demonstrate(task), True), ((ToolCall(name="submit"),), False)):
        world = environment()
        shown = world.reset(task, 0)
        for call in calls:
            assert isinstance(call, ToolCall)
            last = world.step(call)
            assert getattr(last, "error", None) is None, last
        verdict = world.verify()
        world.close()
        assert "double is off by one" in shown.text
        assert "test_double" not in shown.text
        assert (verdict.success, verdict.assurance) == (success, "in_process"), verdict
        assert getattr(last, "stop", None) is (StopReason.SUCCESS if success else StopReason.FAILURE)


def test_the_policy_sees_the_tree_without_the_tests_that_decide(environment: type[CodeRepair], task: Task) -> None:
    world = environment()
    world.reset(task, 0)
    files = world.box.export(Wanted(patterns=("**",))).tree.files
    world.close()
    assert files["calc/core.py"].decode() == FILES["calc/core.py"]
    assert b"test_double" not in files["tests/test_core.py"]
    assert not any(path.startswith("docs/") for path in files)


def test_attack_by_every_known_cheat_pays_only_who_reads_what_is_expected(
    environment: type[CodeRepair], task: Task
) -> None:
    wanted = (
        "changes nothing",
        "leaves at once at import",
        "returns what equals everything",
        "overwrites the tests at import",
        "patches the report class",
        "makes every test call nothing",
        "forges the report on every descriptor",
        "forges the report at the end",
        "reads the tests",
    )
    found = lint_repair(environment, task, cheats=[cheat for cheat in CHEATS if cheat.name in wanted])
    assert found.problems == ()
    assert set(found.accepted) <= {"reads the tests"}
    assert len(found.controls) == 3


def test_attack_by_tests_in_the_solution_is_refused_whole(environment: type[CodeRepair], task: Task) -> None:
    judge = environment.case(task).judge
    assert isinstance(judge, ProgramJudge)
    found = judge.judge(Tree.of({"tests/test_core.py": "pass\n"}), expected=IDS)
    assert (found.success, dict(found.format_checks)) == (False, {"allowed": False})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('format = "swebench"', 'format = "tar"', "expected format = swebench or swesmith"),
        ('source = "calc-1.0.tar.gz"\n', "", "no `source`"),
        ('python = "/usr"', 'python = "/nowhere"', "python is /nowhere, expected the folder of an installation"),
        ('runner = "unittest"', 'runner = "nose"', "no runner `nose`"),
        ('sources = ["calc/**", "tests/**"]', 'sources = "calc"', "expected a list of texts"),
        ("owner__calc-1]", "owner__calc-2]", "a place for `owner__calc-2`, which is not there"),
        ('runner = "unittest"', 'runer = "unittest"', "found `runer`; did you mean `runner`"),
        ('runner = "unittest"', 'libraries = "nowhere"', "expected a folder as `pip install --target`"),
    ],
)
def test_what_is_wrong_in_a_sheet_is_named(sheet: Path, old: str, new: str, words: str) -> None:
    path = sheet.with_name("wrong.toml")
    path.write_text(SHEET.replace(old, new))
    with pytest.raises(UsageError) as found:
        read_instances(path)
    assert words in str(found.value)


def test_a_source_that_is_another_file_or_none_is_refused(sheet: Path) -> None:
    for old, new, words in (
        ('python = "/usr"', f'sha256 = "{"0" * 64}"\npython = "/usr"', "expected 0000"),
        ("calc-1.0.tar.gz", "calc-2.0.tar.gz", "No such file"),
        ('sources = ["calc/**", "tests/**"]', 'sources = ["other/**"]', "which `sources` does not allow"),
    ):
        path = sheet.with_name("wrong.toml")
        path.write_text(SHEET.replace(old, new))
        read = read_instances(path)
        with pytest.raises(UsageError, match=words):
            read.case(read.task("owner__calc-1"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("x\nx\nx\n", "x\ny\nx\n"),
        ("a\n", "a\nb\n"),
        ("a\nb\n", "b\n"),
        ("one\ntwo\n", "zero\none\ntwo\nthree\n"),
        ("", "new\n"),
        ("x\n\n\nx\n\n\nx", "x\n\n\nx\n\ny\nx"),
    ],
)
def test_edits_turn_one_text_into_the_other(before: str, after: str) -> None:
    text = before
    for call in edits("f", before, after):
        old, new = str(call.arguments["old"]), str(call.arguments["new"])
        assert old == "" or text.count(old) == 1
        text = text.replace(old, new) if old else new
    assert text == after
