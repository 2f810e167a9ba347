"""Instances of SWE-bench are read whole or refused with the field that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from kifu.envs.adapters import read_swebench
from kifu.errors import UsageError
from kifu.sandbox.patches import apply_patch

PATCH = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TESTS = "diff --git a/t.py b/t.py\nnew file mode 100644\n--- /dev/null\n+++ b/t.py\n@@ -0,0 +1 @@\n+import m\n"
ROW: dict[str, Any] = {
    "repo": "owner/name",
    "instance_id": "owner__name-1",
    "base_commit": "0" * 40,
    "patch": PATCH,
    "test_patch": TESTS,
    "problem_statement": "x is wrong",
    "hints_text": "",
    "created_at": "2020-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": ["t.py::test_x"],
    "PASS_TO_PASS": ["t.py::test_y"],
    "environment_setup_commit": "1" * 40,
}


def _file(folder: Path, rows: object, name: str = "tasks.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(rows))
    return path


def test_an_instance_keeps_what_the_policy_sees_apart_from_what_the_judge_knows(tmp_path: Path) -> None:
    (found,) = read_swebench(_file(tmp_path, [ROW]), interpreters={"owner__name-1": "3.9"})

    assert found.interpreter == "3.9"
    assert found.fail_to_pass == ("t.py::test_x",)
    assert apply_patch({"m.py": "x = 1\n"}, found.gold) == {"m.py": "x = 2\n"}
    assert apply_patch({}, found.tests) == {"t.py": "import m\n"}
    task = found.task(split="held_out")
    assert (task.id, task.family, task.split) == ("owner__name-1", "owner/name", "held_out")
    assert dict(task.data) == {
        "instance": "owner__name-1",
        "repo": "owner/name",
        "base": "0" * 40,
        "problem": "x is wrong",
    }


def test_ids_as_json_text_and_lines_are_the_same_instance(tmp_path: Path) -> None:
    as_text = {**ROW, "FAIL_TO_PASS": '["t.py::test_x"]', "PASS_TO_PASS": '["t.py::test_y"]'}
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(json.dumps(as_text) + "\n\n")
    assert read_swebench(lines) == read_swebench(_file(tmp_path, [ROW]))


def test_equal_repetitions_are_one_and_different_ones_are_refused(tmp_path: Path) -> None:
    assert len(read_swebench(_file(tmp_path, [ROW, ROW]))) == 1
    with pytest.raises(UsageError, match="two different instances are called 'owner__name-1'"):
        read_swebench(_file(tmp_path, [ROW, {**ROW, "version": "2.0"}]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"instance_id": None}, "`instance_id` is missing"),
        ({"instance_id": "../../etc"}, "stays inside its tree"),
        ({"instance_id": "a/b"}, "an id has no slash"),
        ({"problem_statement": 3}, "`problem_statement` is int"),
        ({"patch": ""}, "patch: no file is changed"),
        ({"patch": PATCH.replace("m.py", "../m.py")}, "stays inside its tree"),
        ({"test_patch": TESTS.replace("100644", "120000")}, "links and submodules"),
        ({"FAIL_TO_PASS": []}, "no test fails on the broken tree"),
        ({"FAIL_TO_PASS": "t.py::test_x"}, "text that is not a JSON list"),
        ({"FAIL_TO_PASS": ["a", "a"]}, "names 'a' twice"),
        ({"FAIL_TO_PASS": ["a\nb"]}, "expected a test id of one line"),
        ({"FAIL_TO_PASS": [""]}, "expected a test id of one line"),
        ({"FAIL_TO_PASS": [1]}, "expected a test id of one line"),
        ({"PASS_TO_PASS": {"t": 1}}, "`PASS_TO_PASS` is dict"),
        ({"PASS_TO_PASS": ["t.py::test_x"]}, "is in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({"problem_statement": "\0"}, "some that no text file holds"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as found:
        read_swebench(_file(tmp_path, [{**ROW, **change}]))
    assert words in str(found.value)
    assert "tasks.json" in str(found.value) or "instance" in str(found.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "is not the JSON it should be"),
        ('[{"a": 1, "a": 2}]', "one name twice"),
        ('[{"a": NaN}]', "NaN is no JSON number"),
        ("[1]", "instance 0: found int"),
        ("\ufeff{", "is not the JSON it should be"),
    ],
)
def test_attack_by_json_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_swebench(path)


def test_an_interpreter_for_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names `owner__name-2`, which is not there; did you mean `owner__name-1`"):
        read_swebench(_file(tmp_path, [ROW]), interpreters={"owner__name-2": "3.9"})


def test_the_real_instances_are_read(task_data: Path) -> None:
    """Counts read off the files by eye: 5 and 5, and 5 with one that stands there twice."""
    found = {path.name: read_swebench(path) for path in sorted((task_data / "swebench").glob("*.json"))}
    sizes = {name: len(tasks) for name, tasks in found.items()}
    assert sizes == {"debug_20240322.json": 5, "swe-bench-dev-easy.json": 4, "swe-bench-lite-test.json": 5}
    django = next(task for task in found["swe-bench-lite-test.json"] if task.id == "django__django-15781")
    assert django.fail_to_pass == ("BaseCommand.create_parser() passes kwargs to CommandParser.",)
    assert len(django.pass_to_pass) == 43
    assert [patch.path for patch in django.gold] == ["django/core/management/base.py"]
    assert [patch.path for patch in django.tests] == ["tests/user_commands/tests.py"]
