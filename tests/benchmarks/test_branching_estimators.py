"""Updates whose rollouts branch: drawn means against enumeration, and a tiny run of the script."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kifu.algorithms import Algorithm, build_algorithm
from kifu.credit.branching import Independent, RolloutPlan
from kifu.lab import PathTable, enumerate_paths, path_probabilities, policy_rows

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "branching_estimators.py"
Doubles = npt.NDArray[np.float64]
PLAIN = {"std": "none", "average": "sum"}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script reads another one that lies beside it."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        yield importlib.import_module(SCRIPT.stem)
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.fixture(scope="module")
def short(script: ModuleType) -> PathTable:
    """A climb with two decisions at most: five trajectories."""
    return enumerate_paths(script.Climb(), max_steps=2)


def drawn(
    script: ModuleType, table: PathTable, algorithm: Algorithm, *, plan: RolloutPlan, size: int, updates: int = 2000
) -> Any:  # noqa: ANN401 (blocks of the script)
    logits = script.start(table)
    forest = script.Forest(table, logits, np.random.default_rng(7))
    return script.sampled(forest, algorithm, plan=plan, size=size, updates=updates)


def assert_mean(blocks: Any, wanted_RA: Doubles) -> None:  # noqa: ANN401
    """Every entry of the drawn mean within five standard errors."""
    means = np.array([block.mean_RA for block in blocks])
    error_RA = means.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    assert float(error_RA.max()) < 0.1 * np.abs(wanted_RA).max()
    assert bool((np.abs(means.mean(axis=0) - wanted_RA) <= 5 * error_RA + 1e-12).all())


def scores(table: PathTable, logits: Doubles) -> Doubles:
    """``[P, R, A]`` d log p / d logits of every trajectory."""
    rows_RA = policy_rows(table, logits)
    found = np.zeros((len(table.paths), *logits.shape))
    for at, path in enumerate(table.paths):
        for row, action in zip(path.rows_T, path.actions_T, strict=True):
            found[at, row] -= rows_RA[row]
            found[at, row, action] += 1.0
    return found


def continued(table: PathTable, chance_P: Doubles, parent: int, turn: int) -> Doubles:
    """``[P]`` chance of every trajectory given the history of one of them before a turn."""
    node = table.paths[parent].nodes_T[turn]
    through = np.array([turn < len(path.nodes_T) and path.nodes_T[turn] == node for path in table.paths])
    kept_P = np.where(through, chance_P, 0.0)
    found: Doubles = kept_P / kept_P.sum()
    return found


@pytest.mark.parametrize("options", [{}, PLAIN])
def test_without_branches_the_drawn_mean_is_grpo_s_enumerated_one(script: ModuleType, options: dict[str, Any]) -> None:
    table = script.worlds()["climb"]
    logits = script.start(table)
    algorithm = build_algorithm("agentic_reinforced_po", options)
    exact = script.update_moments(
        table,
        build_algorithm("grpo", {"average": "token", **options}),
        logits_RA=logits,
        behaviour_RA=logits,
        size=3,
    )
    blocks = drawn(script, table, algorithm, plan=Independent(), size=3, updates=4000)
    assert_mean(blocks, exact.mean_RA)
    for figure in ("cosine", "length", "noise"):
        found = script.jackknife(blocks, lambda moments, name=figure: getattr(moments.compared(exact.mean_RA), name))
        assert abs(found.middle - getattr(exact.compared(exact.mean_RA), figure)) <= 2 * found.half


def test_a_tree_of_a_chain_and_one_branch_is_what_enumeration_says(script: ModuleType, short: PathTable) -> None:
    """Every chain, node of it and continuation, written out: A is the half difference, for the prompt and the tree."""
    logits = script.start(short)
    chance_P, score_P = path_probabilities(short, logits), scores(short, logits)
    reward_P = [sum(path.rewards_T) for path in short.paths]
    mean_RA, square, steps = np.zeros_like(logits), 0.0, 0.0
    for chain, path in enumerate(short.paths):
        nodes = len(path.rows_T)
        for turn in range(nodes):
            for branch, after in enumerate(continued(short, chance_P, chain, turn)):
                chance = chance_P[chain] / nodes * after
                advantage = 2 * (reward_P[chain] - reward_P[branch]) / 2
                update = advantage * (score_P[chain] - score_P[branch]) / 2
                mean_RA += chance * update
                square += chance * float((update**2).sum())
                steps += chance * (nodes + len(short.paths[branch].rows_T) - turn)
    algorithm = build_algorithm("tree_grpo", {"trees": 1, "rounds": 1, "expansions": 1, **PLAIN})
    blocks = drawn(script, short, algorithm, plan=algorithm.plan.rollout, size=2, updates=8000)
    assert_mean(blocks, mean_RA)
    for name, wanted in (("square", square), ("steps", steps)):
        found = np.array([getattr(block, name) for block in blocks])
        assert abs(found.mean() - wanted) <= 5 * found.std(ddof=1) / np.sqrt(len(found))
    whole = script.update_moments(short, algorithm, logits_RA=logits, behaviour_RA=logits, size=2)
    assert np.linalg.norm(mean_RA - whole.mean_RA) > 0.05 * np.linalg.norm(whole.mean_RA)


def test_branches_by_entropy_are_drawn_with_the_published_probability(script: ModuleType, short: PathTable) -> None:
    """One whole rollout and one more: a branch before turn 1 with chance 0.5 + 0.2 dH, else a whole rollout."""
    logits = script.start(short)
    chance_P, score_P = path_probabilities(short, logits), scores(short, logits)
    reward_P = [sum(path.rewards_T) for path in short.paths]
    rows_RA = policy_rows(short, logits)
    entropy_R = [-sum(p * np.log2(p) for p in row if p > 0) for row in rows_RA]
    mean_RA, branched = np.zeros_like(logits), 0.0
    for first, second in product(range(len(short.paths)), repeat=2):
        path, forks = short.paths[first], 0.0
        chance = chance_P[second]
        if len(path.rows_T) > 1:
            forks = 0.5 + 0.2 * (entropy_R[path.rows_T[1]] - entropy_R[path.rows_T[0]])
            chance = forks * continued(short, chance_P, first, 1)[second] + (1 - forks) * chance
            branched += chance_P[first] * chance_P[second] * forks
        half = (reward_P[first] - reward_P[second]) / 2
        mean_RA += chance_P[first] * chance * half * (score_P[first] - score_P[second]) / 2
    algorithm = build_algorithm("agentic_reinforced_po", {"initial_rollouts": 1, **PLAIN})
    blocks = drawn(script, short, algorithm, plan=algorithm.plan.rollout, size=2, updates=8000)
    assert_mean(blocks, mean_RA)
    copied = np.array([block.trained - block.steps for block in blocks])
    assert abs(copied.mean() - branched) <= 5 * copied.std(ddof=1) / np.sqrt(len(copied))


def test_at_ratio_one_shared_means_move_the_policy_as_each_leaf_s_own_credit(script: ModuleType) -> None:
    """A sum over leaves does not change when they swap credit among equal tokens."""
    table = script.worlds()["corridor"]
    soft, hard = (
        build_algorithm("agentic_reinforced_po", {"initial_rollouts": 2, "attribution": name})
        for name in ("soft", "hard")
    )
    one, other = (drawn(script, table, item, plan=item.plan.rollout, size=6, updates=100) for item in (soft, hard))
    assert one[0].trained > one[0].steps
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left.mean_RA, right.mean_RA, rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", ["`aepo`", "`tree_grpo`", "`at2po`", "`trace_budget`", "`agentic_reinforced_po`"])
def test_a_branch_shares_its_parent_s_history_and_no_more_than_the_budget_is_spent(
    script: ModuleType, label: str
) -> None:
    table = script.worlds()["corridor"]
    name, options = script.METHODS[label]
    forest = script.Forest(table, script.start(table), np.random.default_rng(1))
    plan, branches = build_algorithm(name, options).plan.rollout, 0
    for _ in range(30):
        group = forest.group(plan, script.SIZE)
        assert script.SIZE / 2 <= len(group) <= script.SIZE
        for at, place in enumerate(group):
            if place.parent is None:
                continue
            branches += 1
            assert place.parent < at
            own, parents = table.paths[place.path], table.paths[group[place.parent].path]
            assert own.nodes_T[: place.own + 1] == parents.nodes_T[: place.own + 1]
            assert own.actions_T[: place.own] == parents.actions_T[: place.own]
    assert branches > 0


def test_the_jackknife_of_a_mean_is_its_standard_error(script: ModuleType) -> None:
    """The steps of an update are a plain mean, for which the interval has a closed form."""
    counts = np.random.default_rng(0).normal(size=script.BLOCKS)
    blocks = [script.Block(mean_RA=np.zeros((1, 1)), square=0.0, steps=float(count), trained=0.0) for count in counts]
    found = script.jackknife(blocks, lambda moments: moments.steps)
    assert found.middle == pytest.approx(counts.mean())
    assert found.half == pytest.approx(2.093 * counts.std(ddof=1) / np.sqrt(script.BLOCKS))


def test_a_budget_over_tasks_is_the_mean_over_the_tasks_that_should_disagree(script: ModuleType) -> None:
    """Undivided and summed, a group's mean is (1 - 1/n) times its own task's gradient."""
    tables = list(script.tasks().values())
    logits = np.zeros(tables[0].allowed_RA.shape)
    options = {"budget": 6, "root_share": 1.0, "rollouts": 3, **PLAIN}
    step = script.allocated(tables, build_algorithm("trace_budget", options), logits_RA=logits, budget=6)
    wins = [
        sum(p for p, path in zip(path_probabilities(table, logits), table.paths, strict=True) if sum(path.rewards_T))
        for table in tables
    ]
    order = sorted(range(len(tables)), key=lambda at: abs(wins[at] - 0.5))
    assert [at for at, count in enumerate(step.rollouts) if count] == sorted(order[:2])
    wanted = np.mean([script.exact_gradient(tables[at], logits, gamma=1.0) for at in order[:2]], axis=0) * 2 / 3
    np.testing.assert_allclose(step.moments.mean_RA, wanted, rtol=0, atol=1e-10)
    every = script.allocated(tables, build_algorithm("grpo", PLAIN), logits_RA=logits, budget=8)
    total = np.mean([script.exact_gradient(table, logits, gamma=1.0) for table in tables], axis=0)
    np.testing.assert_allclose(every.moments.mean_RA, total / 2, rtol=0, atol=1e-10)


def test_a_tiny_run_writes_its_own_part_of_the_page(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = script.MARKS
    page.write_text(f"before\n{begin}\nstale figures\n{end}\nafter\n")
    arguments = ["--updates", "40", "--only", "tree_grpo", "--out", str(page)]
    subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, capture_output=True)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale figures" not in text
    assert "| `tree_grpo` | its own | " in text
    assert "± " in text
