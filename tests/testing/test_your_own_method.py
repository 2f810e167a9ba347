"""The method that docs/your_own_method.md builds works everywhere after one line in the table of methods."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from kifu.algorithms import ALGORITHMS, Algorithm, build_algorithm
from kifu.cli import app
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.testing import check_algorithm
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "your_own_method.md"


@pytest.fixture
def against_best(monkeypatch: pytest.MonkeyPatch) -> type[Algorithm]:
    """The page's module, imported, with its one line in the table."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    module = ModuleType("against_best")
    monkeypatch.setitem(sys.modules, "against_best", module)
    exec(compile(blocks[0], str(PAGE), "exec"), module.__dict__)
    assert '"against_best": AgainstBest,' in PAGE.read_text()
    monkeypatch.setitem(ALGORITHMS, "against_best", module.AgainstBest)
    found: type[Algorithm] = module.AgainstBest
    return found


def test_its_code_is_thirty_lines_and_a_card(against_best: type[Algorithm]) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    body = block[block.index("@dataclass") :]
    card = body[body.index("    card:") : body.index("    def credit")]
    lines = [line for line in body.replace(card, "").splitlines() if line.strip()]
    assert len(lines) <= 30
    assert against_best.card.neighbour.startswith("grpo")


def test_it_keeps_the_contract(against_best: type[Algorithm]) -> None:
    told = check_algorithm(build_algorithm("against_best", {"average": "token"}))
    assert len(told) == 8
    assert not any("not checked" in line for line in told)


def test_its_formula_and_where_it_differs_from_its_neighbour(against_best: type[Algorithm], tmp_path: Path) -> None:
    group = [
        {"id": str(at), "reward": reward, "turns": [{"tokens": [{"logprob": -0.5, "behaviour_logprob": -0.5}]}]}
        for at, reward in enumerate([1.0, 0.25, -1.0])
    ]
    (tmp_path / "f.json").write_text(json.dumps({"groups": [{"trajectories": group}]}))
    shown = {}
    for name in ("against_best", "grpo"):
        found = CliRunner().invoke(app, ["credit", str(tmp_path / "f.json"), "--algorithm", name, "--json"])
        assert found.exit_code == 0, found.stderr
        document = json.loads(found.stdout)
        shown[name] = [item["turns"][0]["advantage"] for item in document["groups"][0]["trajectories"]]
    assert shown["against_best"] == [0.0, -0.75, -2.0]
    assert shown["grpo"][0] > 0 > shown["grpo"][2]


def test_a_group_of_equal_returns_carries_no_signal(against_best: type[Algorithm]) -> None:
    episode = Episode(rewards_K=[1.0], terminated=True)  # type: ignore[arg-type]
    assert build_algorithm("against_best").credit([episode, episode], RewardRules()) is None


def test_a_run_trains_with_it(against_best: type[Algorithm], tmp_path: Path) -> None:
    small = ("policy.hidden=16", "evaluation.tasks=2", "machine.threads=1", "update.group_size=4", "update.patience=9")
    terminal = "environment.on_truncation=terminal"
    loaded = load_experiment(
        TOP / "recipes" / "corridor.toml",
        profile="check",
        overrides=(*small, terminal, 'credit.algorithm="against_best"', "credit.options={clip_high=0.3}"),
    )
    result = train(loaded, out=tmp_path / "run", quiet=True)

    assert result.steps == 2
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["algorithm_card"]["name"] == "Return against the best of the group"
    assert result.version >= 1, "some group differed, and its step moved the weights"
