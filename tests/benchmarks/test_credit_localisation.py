"""The world of the credit localisation table against enumeration, and a tiny run of it."""

import importlib.util
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kifu.algorithms import build_algorithm

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "credit_localisation.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("credit_localisation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("planted", [1, 3, 5])
def test_values_are_those_of_all_continuations(script: ModuleType, planted: int) -> None:
    world = script.World(planted=planted, horizon=5)
    table = script.values(world)

    def success(acts: tuple[int, ...]) -> float:
        sloppy = sum(acts) - acts[planted - 1]
        return 0.0 if acts[planted - 1] else world.base - world.cost * sloppy

    for prefix in [(), (1,), (0, 1), (1, 0, 1), (0, 0, 1, 1), (1, 1, 1, 1, 1)]:
        expected = 0.0
        for rest in product([0, 1], repeat=5 - len(prefix)):
            chances = [
                world.chance(step) if act else 1 - world.chance(step) for step, act in enumerate(rest, len(prefix))
            ]
            expected += float(np.prod(chances)) * success((*prefix, *rest))
        whole = np.array([*prefix, *[0] * (5 - len(prefix))])
        assert script.on_path(world, table, whole)[len(prefix)] == pytest.approx(expected, abs=1e-12)


def test_value_differences_sum_to_what_the_episode_was_worth(script: ModuleType) -> None:
    world = script.World(planted=2, horizon=6)
    acts = np.array([1, 1, 0, 1, 0, 0])
    differences = np.diff(script.on_path(world, script.values(world), acts))
    assert differences.sum() == pytest.approx(0.0 - script.values(world)[0, 0, 0])
    assert differences[2:].tolist() == [0.0] * 4, "nothing matters after the fatal act"


@pytest.mark.parametrize("credit", [[1.0, -3.0, 0.0], [-1.0, 3.0, 0.0]])
def test_the_share_ignores_the_sign(script: ModuleType, credit: list[float]) -> None:
    assert script.share_of(np.array(credit), 1) == (0.75, True)
    assert script.share_of(np.array(credit), 0) == (0.25, False)
    assert script.share_of(np.zeros(3), 0) is None


def test_of_equal_credits_none_is_the_largest(script: ModuleType) -> None:
    assert script.share_of(np.ones(4), 2) == (0.25, False)


@pytest.mark.parametrize("planted", [3, 30])
def test_one_number_a_trajectory_spreads_evenly(script: ModuleType, planted: int) -> None:
    world = script.World(planted=planted, horizon=30)
    found = script.measure(build_algorithm("grpo"), world, seen=False, seeds=[0], groups=6)
    assert found.share.mean == pytest.approx(1 / 30)
    assert found.first == 0.0


def test_residuals_of_a_critic_that_sees_the_act_are_the_exact_shares(script: ModuleType) -> None:
    """With lam 0 credit is the value difference itself, up to the reward's own noise at the last step."""
    world = script.World(planted=3, horizon=30)
    one_step = build_algorithm("turn_ppo", {"lam": 0.0})
    exact = script.measure(None, world, seen=True, seeds=[0], groups=6)
    found = script.measure(one_step, world, seen=True, seeds=[0], groups=6)
    assert found.share.mean == pytest.approx(exact.share.mean, abs=1e-9)
    assert exact.first == found.first == 1.0


def test_hidden_knowledge_cannot_find_an_early_act(script: ModuleType) -> None:
    world = script.World(planted=3, horizon=30)
    for name in ("turn_ppo", "graphhca"):
        seen, hidden = (
            script.measure(build_algorithm(name), world, seen=knows, seeds=[0], groups=6) for knows in (True, False)
        )
        assert seen.share.mean > 1.2 * hidden.share.mean
        assert hidden.first == 0.0


def test_a_branch_shares_what_came_before_it(script: ModuleType) -> None:
    world = script.World(planted=5, horizon=20)
    group = script.sample_group(world, size=8, branched=True, random=np.random.default_rng(0))
    for root, branch in zip(group[:4], group[4:], strict=True):
        assert branch.parent == root.id
        assert 1 <= branch.branch_at < 20
        assert branch.acts[: branch.branch_at].tolist() == root.acts[: branch.branch_at].tolist()


def test_the_command_writes_its_table_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nbefore\n\n<!-- table: begin -->\nold\n<!-- table: end -->\n\nafter\n")
    command = [sys.executable, str(SCRIPT), "--groups", "2", "--seeds", "0", "--horizon", "6", "--out", str(page)]

    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# Page\n\nbefore\n\n<!-- table: begin -->\n1 seeds (0) of 2 groups of 8, 6 acts\n")
    assert text.endswith("<!-- table: end -->\n\nafter\n")
    assert "old" not in text
    assert "| exact value difference |" in text
    for name in ("grpo", "gigpo", "turn_ppo", "tree_grpo"):
        assert f"| `{name}` |" in text
    assert "- `sft`: learns from a fixed set" in text
