"""Ctrl-C anywhere in a command: what was interrupted, what to do, exit code 130, no traceback."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]

_PRESSED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and what nohup starts this one
import {module} as module

def pressed(*args, **kwargs):
    os.kill(os.getpid(), signal.{number})
    raise AssertionError("the signal comes first")

module.{name} = pressed
from kifu.cli import main
main()
"""


def _interrupt(module: str, name: str, *arguments: str, number: str = "SIGINT") -> tuple[int, str]:
    """Run a command that is sent a signal the moment it calls ``module.name``."""
    program = _PRESSED.format(module=module, name=name, number=number)
    child = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    return child.returncode, child.stderr


@pytest.mark.parametrize(
    ("module", "name", "arguments", "says"),
    [
        ("kifu.cli.audit", "audit_run", ("audit", "RUN"), "`kifu audit` had not finished. It changes nothing"),
        ("kifu.cli.report", "write_report", ("report", "RUN"), "`kifu report` had not finished. No page was written"),
        ("kifu.cli.evaluate", "evaluate_run", ("eval", "RUN"), "`kifu eval` had not finished. No result was written"),
        ("kifu.training.run", "prepare", ("train", "FILE"), "`kifu train` had not finished. The run had not begun"),
        ("kifu.training.run", "_drive", ("train", "FILE"), "nothing of it was kept; start it again"),
        ("kifu.cli.deferred", "load", ("doctor",), "`kifu doctor` had not finished."),
    ],
)
def test_an_interrupted_command_says_what_it_left(
    experiment: Write, tmp_path: Path, module: str, name: str, arguments: tuple[str, ...], says: str
) -> None:
    run = tmp_path / "run"
    given = [{"RUN": str(run), "FILE": str(experiment())}.get(word, word) for word in arguments]
    if given[0] == "train":
        given += ["--profile", "check", "--out", str(run)]

    code, errors = _interrupt(module, name, *given)

    assert (code, says in errors, "Traceback" in errors) == (128 + signal.SIGINT, True, False), errors
    assert not run.exists() or not list(run.iterdir())


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_other_signals_that_ask_for_an_end_are_told_alike(experiment: Write, tmp_path: Path, number: str) -> None:
    code, errors = _interrupt("kifu.cli.deferred", "load", "doctor", number=number)
    assert (code, "`kifu doctor` had not finished." in errors) == (130, True), errors

    given = ("train", str(experiment()), "--profile", "check", "--out", str(tmp_path / "run"))
    code, errors = _interrupt("kifu.training.run", "prepare", *given, number=number)
    assert (code, "The run had not begun" in errors, "Traceback" in errors) == (130, True, False), errors


_SCRIPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
import kifu.training.run as module
from kifu.training.experiment.reading import load_experiment

def pressed(*args, **kwargs):
    {happens}

module._drive = pressed
module.train(load_experiment(Path("{file}"), profile="check"), out=Path("{run}"), quiet=True)
"""


@pytest.mark.parametrize(
    ("happens", "code", "says", "traced"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", 128 + signal.SIGINT, "nothing of it was kept; start it again", False),
        ("raise RuntimeError('mine')", 1, "RuntimeError: mine", True),
    ],
)
def test_a_script_that_does_not_catch_the_interruption_ends_with_its_message_alone(
    experiment: Write, tmp_path: Path, happens: str, code: int, says: str, traced: bool
) -> None:
    """Any other error keeps its traceback."""
    script = tmp_path / "mine.py"
    script.write_text(_SCRIPT.format(happens=happens, file=experiment(), run=tmp_path / "run"))

    child = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)

    found = (child.returncode, says in child.stderr, "Traceback" in child.stderr)
    assert found == (code, True, traced), child.stderr
    assert traced or len(child.stderr.strip().splitlines()) == 1
