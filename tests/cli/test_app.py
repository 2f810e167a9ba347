"""The entry: help, exit codes, errors without tracebacks, and what is loaded for what."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import Result

from kifu.cli.commands import COMMANDS
from kifu.cli.deferred import load

Kifu = Callable[..., Result]


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
MAIN = "from kifu.cli import main\nmain()\n"


def command(*arguments: object, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", before + MAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_help_lists_every_command(kifu: Kifu) -> None:
    found = kifu("--help")
    assert found.exit_code == 0
    assert [name for name in COMMANDS if name not in found.stdout] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_its_own_help(kifu: Kifu, name: str) -> None:
    found = kifu(name, "--help")
    assert found.exit_code == 0
    assert f"kifu {name}" in found.stdout


@pytest.mark.parametrize(
    ("group", "shows"),
    [((), "train"), (("lab",), "corridor"), (("envs",), "key_door_text"), (("models",), "cache ")],
)
def test_a_group_called_alone_says_what_there_is(kifu: Kifu, group: tuple[str, ...], shows: str) -> None:
    found = kifu(*group)
    assert (found.exit_code, shows in found.stdout) == (0, True), found.stdout


def every_command() -> list[tuple[str, ...]]:
    """The words of each command, those of groups too."""
    found = list[tuple[str, ...]]()
    for name, (where, _) in COMMANDS.items():
        own = get_command(load(where, command=name))
        found += [(name, inner) for inner in getattr(own, "commands", ())] or [(name,)]
    return found


ARGUMENT = r"(\[NAME=\])?[A-Z]+|\[[A-Z]+\]"
"""Required or optional; dots after it say that it may be repeated."""


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_a_usage_line_is_in_the_usual_notation(kifu: Kifu, words: tuple[str, ...]) -> None:
    first = re.split(r"\n\s*\n", kifu(*words, "--help").stdout.strip())[0]
    text = " ".join(first.split())
    assert re.fullmatch(rf"Usage: kifu {' '.join(words)} \[OPTIONS\]( ({ARGUMENT})(\.\.\.)?)*", text)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("train",), "kifu train [OPTIONS] FILE"),
        (("check",), "kifu check [OPTIONS] [FILE]"),
        (("show",), "kifu show [OPTIONS] RUN [TRAJECTORY]"),
        (("compare",), "kifu compare [OPTIONS] RUN RUN [RUN]..."),
        (("gateway",), "kifu gateway [OPTIONS] RUN"),
        (("envs", "card"), "kifu envs card [OPTIONS] NAME"),
        (("envs", "mine"), "kifu envs mine [OPTIONS] [NAME=]FOLDER..."),
    ],
)
def test_a_usage_line_calls_arguments_as_the_pages_do(kifu: Kifu, words: tuple[str, ...], usage: str) -> None:
    assert usage in " ".join(kifu(*words, "--help").stdout.split())


def test_an_error_shows_the_same_usage_line(kifu: Kifu) -> None:
    assert "Usage: kifu show [OPTIONS] RUN [TRAJECTORY]" in kifu("show").stderr


def test_the_version_is_the_installed_one(kifu: Kifu) -> None:
    assert kifu("--version").stdout.strip() == f"kifu {version('kifu')}"


def test_an_unknown_command_is_a_usage_error_that_names_the_nearest(kifu: Kifu) -> None:
    found = kifu("trian")
    assert found.exit_code == 2
    assert "trian" in found.stderr
    assert "train" in found.stderr.replace("trian", "")


def test_reading_a_run_needs_no_torch(finished: Path) -> None:
    listed = command("show", finished, "--json", before=WITHOUT_TORCH)
    assert listed.returncode == 0, listed.stderr
    compared = command("compare", finished, finished, before=WITHOUT_TORCH)
    assert "one protocol and one seed" in compared.stderr
    assert command("lab", "corridor", before=WITHOUT_TORCH).returncode == 0


def test_a_command_that_needs_torch_says_how_to_get_it(finished: Path) -> None:
    found = command("eval", finished, before=WITHOUT_TORCH)
    assert found.returncode == 2
    assert "pip install 'kifu[hf]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_expected_failure_has_no_traceback_unless_asked_for(tmp_path: Path) -> None:
    quiet = command("show", tmp_path)
    loud = command("show", tmp_path, KIFU_DEBUG="1")
    assert quiet.returncode == loud.returncode == 4
    assert quiet.stderr.startswith("error: ")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize("name", ["plan.jsonl", "records/manifest.jsonl", "metrics.jsonl"])
def test_a_file_that_cannot_be_read_is_a_failure_of_storage(kifu: Kifu, copied: Path, name: str) -> None:
    (copied / name).unlink()
    (copied / name).mkdir()
    found = kifu("report", copied)
    assert found.exit_code == 4
    assert name in found.stderr.replace("\n", "")
    assert "unexpected" not in found.stderr


def test_a_folder_that_cannot_be_made_is_a_failure_of_storage(kifu: Kifu, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    found = kifu("init", tmp_path / "taken" / "doors")
    assert found.exit_code in (2, 4)
    assert "unexpected" not in found.stderr


def test_what_foreign_code_prints_does_not_touch_the_document() -> None:
    noisy = "import kifu.cli.doctor as d\nkept = d.facts\ndef facts(): print('noise'); return kept()\nd.facts = facts\n"
    found = command("doctor", "--json", before=noisy)
    assert found.returncode == 0
    assert isinstance(json.loads(found.stdout), dict)
    assert "noise" in found.stderr


def test_an_unexpected_failure_is_one_line_unless_asked_for(tmp_path: Path) -> None:
    broken = "import kifu.cli.doctor as d\ndef facts(): raise ZeroDivisionError('boom')\nd.facts = facts\n"
    quiet, loud = command("doctor", before=broken), command("doctor", before=broken, KIFU_DEBUG="1")
    assert (quiet.returncode, loud.returncode) == (1, 1)
    assert "boom" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    assert "ZeroDivisionError" in loud.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "absent.toml"),
        ("check", "absent.toml"),
        ("resume", "absent"),
        ("eval", "absent"),
        ("audit", "absent"),
        ("replay", "absent"),
        ("show", "absent"),
        ("report", "absent"),
        ("export", "absent", "--to", "hf", "there"),
        ("models", "pull", "absent model"),
        ("envs", "card", "absent"),
        ("algorithms", "absent"),
        ("lab", "corridor", "--episodes", "0"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_failure_is_one_json_document_too(
    kifu: Kifu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """With the exit code of the process and the message of standard error."""
    monkeypatch.chdir(tmp_path)

    found = kifu(*arguments, "--json")

    document = json.loads(found.stdout)
    assert sorted(document) == ["error", "exit_code"]
    assert document["exit_code"] == found.exit_code != 0
    assert f"error: {document['error']}" in " ".join(found.stderr.split())
