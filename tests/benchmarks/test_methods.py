"""The learning table: equal budgets for every method, what is kept between calls, and a tiny run."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm
from kifu.training.experiment.reading import load_experiment

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "methods.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", ALGORITHMS)
@pytest.mark.parametrize("world", ["key_door", "corridor"])
def test_every_method_gets_the_same_number_of_episodes(script: ModuleType, method: str, world: str) -> None:
    job = script.Job(method=method, world=world, seed=1, steps=7)

    loaded = load_experiment(script.WORLDS[world], overrides=job.overrides(Path("runs")))

    update = loaded.experiment.update
    assert update.prompts_per_step * update.group_size == 32
    assert update.steps == 7
    assert loaded.experiment.credit.algorithm == method
    build_algorithm(method, loaded.experiment.credit.options)
    assert (update.data.type == "stored") == script.is_offline(build_algorithm(method))


def test_records_to_learn_from_are_made_before_they_are_needed(script: ModuleType) -> None:
    made = [
        (job.seed, job.method)
        for job in script.jobs(["offline_awr", "grpo"], [0, 1], steps=3, text=False)
        if job.world == "key_door"
    ]
    assert made == [(seed, name) for seed in (0, 1) for name in ("reinforce", "grpo", "offline_awr")]


def line(method: str, seed: int, after: float, **above: object) -> dict[str, Any]:
    counts = {"groups": 8, "informative": 4, "branches": 0, "replayed": 0, "clipped": 1, "tokens": 100}
    found = {"world": "key_door", "method": method, "seed": seed, "steps": 5, "options": {}, "tasks": 64, "cpu_s": 2.0}
    return {**found, "wall_s": 3.0, "after": after, "before": 0.0, "curve": 0.25, "counts": counts, **above}


def test_a_row_has_every_seed_the_interval_and_what_the_parts_did(script: ModuleType) -> None:
    text = script.table([line("rloo", 1, 1.0), line("rloo", 0, 0.5), line("tara", 0, 0.0, error="needs checks; more")])

    row = next(row for row in text.splitlines() if row.startswith("| `rloo`"))
    assert "| 0.50 1.00 | 0.75 [" in row
    assert "50% of groups informative, 1.00% of tokens at a bound" in row
    assert "| `tara` | needs checks |" in text


def test_what_is_known_is_not_run_again_and_the_page_keeps_its_text(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("\n".join(json.dumps(line("rloo", seed, 1.0)) for seed in (0, 1)) + "\n")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nno section yet\n{script.END}\nafter\n")
    arguments = ["--only", "rloo", "--seeds", "0,1", "--steps", "5", "--runs", str(tmp_path), "--page", str(page)]
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "no section yet" not in text
    assert "| `rloo` | 1.00 1.00 | 1.00 [" in text


def rows(text: str) -> dict[str, str]:
    """Lines of the page by first cell; worlds of these tests have no method in common."""
    return {found.split("|")[1].strip(): found for found in text.splitlines() if found.startswith("| `")}


def test_the_published_page_is_read_back_and_written_the_same(script: ModuleType) -> None:
    held = script.PAGE.read_text().partition(script.BEGIN)[2].partition(script.END)[0]

    assert script.table([], before=held).strip() == held.strip()
    assert len(rows(held)) > 20


def test_the_plain_command_makes_every_row_of_the_published_table(script: ModuleType) -> None:
    page = (TOP / "docs" / "results" / "methods.md").read_text()
    rows = re.findall(r"^\| `(\w+)`", page.split("## key_door\n")[1].split("\n## ")[0], re.M)
    assert set(rows) == set(script.TIER_A)


def test_a_partial_run_changes_its_rows_and_keeps_the_others(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    elsewhere = line("gigpo", 0, 0.25, world="corridor")
    script.write(page, [line("rloo", 0, 0.5), line("tara", 0, 0.0, error="needs checks"), elsewhere])
    before = rows(page.read_text())

    script.write(page, [line("rloo", seed, 1.0) for seed in (0, 4)] + [line("cispo", 4, 0.75)])

    text = page.read_text()
    after = rows(text)
    assert list(after) == ["`cispo`", "`rloo`", "`tara`", "`gigpo`"]
    assert (after["`tara`"], after["`gigpo`"]) == (before["`tara`"], before["`gigpo`"])
    assert "| 1.00 1.00 |" in after["`rloo`"]
    assert "5 updates; seeds 0, 4.\n" in text
    assert [title for title in text.splitlines() if title.startswith("#")] == [
        "# What every method learns",
        "## key_door",
        "## corridor",
    ]


def test_a_row_of_more_seeds_stays_and_one_that_failed_gives_way(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    script.write(page, [line("rloo", seed, 0.5) for seed in (0, 1)] + [line("tara", 0, 0.0, error="needs checks")])
    script.write(page, [line("rloo", 2, 1.0), line("tara", 0, 0.25)])

    after = rows(page.read_text())
    assert "| 0.50 0.50 |" in after["`rloo`"]
    assert "| 0.25 |" in after["`tara`"]


def test_another_budget_is_another_section(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    script.write(page, [line("rloo", 0, 0.5)])
    script.write(page, [line("rloo", 0, 1.0, steps=9)])
    script.write(page, [line("rloo", 0, 0.75, steps=9)])

    text = page.read_text()
    assert [title for title in text.splitlines() if title.startswith("## ")] == [
        "## key_door",
        "## key_door, 9 updates",
    ]
    assert [found.split("|")[2].strip() for found in text.splitlines() if found.startswith("| `")] == ["0.50", "0.75"]


def test_a_second_option_set_is_run_and_shown_beside_the_first(script: ModuleType, tmp_path: Path) -> None:
    made = [job for job in script.jobs(["agentic_dpo"], [0], steps=3, text=False) if job.method == "agentic_dpo"]
    assert [job.options["negatives"] for job in made] == ["recorded", "sampled"]
    assert len({job.name for job in made}) == 2
    sets = ['credit.options={ negatives = "recorded" }', 'credit.options={ negatives = "sampled" }']
    assert [next(one for one in job.overrides(tmp_path) if "options" in one) for job in made] == sets

    results = [line("agentic_dpo", 0, 0.5 + at / 4, options=dict(job.options)) for at, job in enumerate(made)]
    state = tmp_path / "results.jsonl"
    state.write_text("".join(json.dumps(row) + "\n" for row in results))
    script.write(tmp_path / "page.md", script.read(state))
    after = rows((tmp_path / "page.md").read_text())
    assert [after[f"`agentic_dpo` (negatives {name})"].split("|")[2].strip() for name in ("recorded", "sampled")] == [
        "0.50",
        "0.75",
    ]


def test_a_result_names_the_commit_and_whether_files_differ(script: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *settings, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("one\n")
    git("add", "src")
    git("commit", "-q", "-m", "one")
    assert script.commit_of(tmp_path) == git("rev-parse", "--short", "HEAD")
    (tmp_path / "src" / "a.py").write_text("two\n")
    assert script.commit_of(tmp_path) == git("rev-parse", "--short", "HEAD") + "+"


def test_a_tiny_run_is_kept_and_shown(script: ModuleType, tmp_path: Path) -> None:
    arguments = ["--only", "rloo", "--seeds", "3", "--steps", "1", "--runs", str(tmp_path)]
    arguments += ["--page", str(tmp_path / "page.md")]
    subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, capture_output=True)
    (kept,) = [json.loads(row) for row in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert (kept["method"], kept["seed"], kept["tasks"], kept["counts"]["groups"]) == ("rloo", 3, 64, 4)
    assert 0.0 <= kept["after"] <= 1.0
    assert kept["commit"] == script.commit_of(TOP)
    assert f"| {kept['after']:.2f} |" in (tmp_path / "page.md").read_text()
