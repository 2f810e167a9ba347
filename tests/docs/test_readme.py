"""The README's examples run as they are printed, on the tiny model and for two steps, and leave runs that audit."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kifu import audit

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
MODEL = 'model="smollm2-135m"'
SMALL = 'model="tiny", update={"steps": 2, "prompts_per_step": 2, "group_size": 3}, evaluation={"tasks": 1}, quiet=True'


def blocks(language: str) -> list[str]:
    """Code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(holding: str) -> str:
    """The one Python block that holds a text, cut down to check mode."""
    (found,) = [text for text in blocks("python") if holding in text]
    assert found.count(MODEL) == 1
    return found.replace(MODEL, SMALL)


def run(script: Path) -> None:
    """As a reader would, from the folder of the script."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_example_is_run_here() -> None:
    assert len(blocks("python")) == 2


def test_the_environment_fits_in_the_number_of_lines_it_promises() -> None:
    """Code lines of the class, blank ones and docstrings aside."""
    (found,) = [text for text in blocks("python") if "kifu.Environment" in text]
    body = found[found.index("class ") : found.index("if __name__")].splitlines()
    assert len([line for line in body if line.strip() and not line.strip().startswith('"""')]) <= 20


@pytest.mark.parametrize(("name", "evaluated"), [("safe", 2), ("sums", 1)])
def test_an_example_trains_and_its_run_audits_without_a_problem(tmp_path: Path, name: str, evaluated: int) -> None:
    """Two steps of two groups of three; the tiny model answers no question, so no new version is evaluated again."""
    holding = {"safe": "kifu.Environment", "sums": "tasks="}[name]
    script = tmp_path / f"{name}.py"
    script.write_text(block(holding))
    (tmp_path / "questions.jsonl").write_text(blocks("json")[0])

    run(script)

    folder = tmp_path / "runs" / name
    assert len(json.loads((folder / "run.json").read_text())["evaluations"]) == 2
    report = audit(folder, scores=False)
    records = 2 * 2 * 3 + evaluated
    assert (report.records, report.rebuilt, report.problems, report.ledger_closed) == (records, records, (), True)
