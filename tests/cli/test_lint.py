"""`kifu envs lint`: what is said, as text and as JSON, and the exit status."""

import json
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import Result


class Kifu(Protocol):
    def __call__(self, *arguments: object) -> Result: ...


def folder(place: Path, test: str) -> Path:
    """A Harbor task that wants a file with 42 in it."""
    for name, text in {
        "task.toml": 'version = "1.0"\n',
        "instruction.md": "Write 42 to answer.txt.\n",
        "tests/test.sh": test,
        "solution/solve.sh": "echo 42 > /app/answer.txt\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.mark.parametrize(
    ("test", "code", "words"),
    [
        (
            '[ "$(cat /app/answer.txt)" = 42 ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n',
            0,
            "(1.00), assurance in_process, verifier harbor_tests/1\npaid: none\nhonest controls accepted: 2 of 2",
        ),
        (
            '[ -n "$(ls /app)" ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n',
            1,
            "problem: cheat paid: says that",
        ),
        ("echo 0 > /logs/verifier/reward.txt\n", 1, "problem: honest control refused: solution"),
    ],
    ids=["holds", "pays any file", "refuses work"],
)
def test_a_task_is_linted_and_the_exit_status_says_whether_it_holds(
    kifu: Kifu, tmp_path: Path, test: str, code: int, words: str
) -> None:
    place = folder(tmp_path / "answer", test)
    shown = kifu("envs", "lint", place)
    assert (shown.exit_code, words in shown.stdout) == (code, True), shown.stdout
    if code == 0:
        found = json.loads(kifu("envs", "lint", place, "--json").stdout)
        assert (found["ok"], found["accepted"], found["controls_accepted"]) == (True, [], 2)
        assert found["cheats"] == sum(not item["honest"] for item in found["tried"])


def test_a_task_nobody_knows_is_a_usage_error(kifu: Kifu) -> None:
    found = kifu("envs", "lint", "code_repair/nobody-1-1")
    assert found.exit_code == 2
    assert "no package `nobody`" in found.stderr
