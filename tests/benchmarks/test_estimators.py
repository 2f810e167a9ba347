"""The table of estimators against enumeration by other means, and a tiny run of its script."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import SampleStd, Unscaled
from kifu.lab import GroupRelative, estimator_mean, exact_gradient

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "benchmarks" / "estimators.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("estimators", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("world", ["corridor", "climb"])
@pytest.mark.parametrize(("name", "options"), [("reinforce", {}), ("reinforce", {"baseline": "others"}), ("rloo", {})])
def test_unbiased_methods_have_the_exact_gradient_as_mean(
    script: ModuleType, world: str, name: str, options: dict[str, str]
) -> None:
    table = script.worlds()[world]
    logits = script.start(table)
    found = script.update_moments(table, build_algorithm(name, options), logits_RA=logits, behaviour_RA=logits, size=2)
    np.testing.assert_allclose(found.mean_RA, exact_gradient(table, logits, gamma=1.0), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "estimator"),
    [
        ({"std": "none", "average": "sum"}, GroupRelative(size=3, scale=Unscaled())),
        ({"std": "sample", "average": "sum"}, GroupRelative(size=3, scale=SampleStd())),
        ({"std": "sample", "average": "trajectory"}, GroupRelative(size=3, scale=SampleStd(), length="mean")),
    ],
)
def test_grpo_s_mean_is_that_of_the_lab_s_enumeration(
    script: ModuleType, options: dict[str, str], estimator: GroupRelative
) -> None:
    table = script.worlds()["climb"]
    logits = script.start(table)
    found = script.update_moments(
        table, build_algorithm("grpo", options), logits_RA=logits, behaviour_RA=logits, size=3
    )
    np.testing.assert_allclose(found.mean_RA, estimator_mean(table, logits, estimator, gamma=1.0), rtol=0, atol=1e-10)


def test_the_variance_is_that_of_drawn_updates(script: ModuleType) -> None:
    """Monte Carlo over pairs of trajectories, scores written out, within five standard errors."""
    table = script.worlds()["climb"]
    logits = script.start(table)
    algorithm = build_algorithm("rloo")
    found = script.update_moments(table, algorithm, logits_RA=logits, behaviour_RA=logits, size=2)
    weight_RA = np.where(table.allowed_RA, np.exp(logits), 0.0)
    rows_RA = weight_RA / weight_RA.sum(axis=1, keepdims=True)
    chances = np.array(
        [
            path.world_factor * np.prod([rows_RA[r, a] for r, a in zip(path.rows_T, path.actions_T, strict=True)])
            for path in table.paths
        ]
    )
    scores = []
    for path in table.paths:
        score_RA = np.zeros_like(logits)
        for row, action in zip(path.rows_T, path.actions_T, strict=True):
            score_RA[row] -= rows_RA[row]
            score_RA[row, action] += 1.0
        scores.append(score_RA)
    rewards = np.array([sum(path.rewards_T) for path in table.paths])
    drawn = np.random.default_rng(0).choice(len(chances), size=(20_000, 2), p=chances / chances.sum())
    gaps = rewards[drawn[:, 0]] - rewards[drawn[:, 1]]
    updates = gaps[:, None, None] * (np.array(scores)[drawn[:, 0]] - np.array(scores)[drawn[:, 1]]) / 2
    squares = ((updates - found.mean_RA) ** 2).sum(axis=(1, 2))
    assert abs(squares.mean() - found.variance) <= 5 * squares.std() / np.sqrt(squares.size)


@pytest.mark.parametrize("age", [0, 2, 4])
def test_the_true_ratio_corrects_any_age_exactly(script: ModuleType, age: int) -> None:
    table = script.worlds()["climb"]
    logits = script.start(table)
    older = script.older(table, logits, versions=age)
    corrected = script.Corrected(inner=build_algorithm("reinforce"))
    found = script.update_moments(table, corrected, logits_RA=logits, behaviour_RA=older, size=2)
    np.testing.assert_allclose(found.mean_RA, exact_gradient(table, logits, gamma=1.0), rtol=0, atol=1e-10)
    plain = script.update_moments(table, build_algorithm("reinforce"), logits_RA=logits, behaviour_RA=older, size=2)
    gap = np.linalg.norm(plain.mean_RA - found.mean_RA) / np.linalg.norm(found.mean_RA)
    assert (gap > 0.05) == (age > 0)


def test_a_replayed_success_takes_any_place_of_a_failed_group(script: ModuleType) -> None:
    """Every ordered pair of trajectories and every replacement, written out; replay is uncorrected."""
    table = script.worlds()["climb"]
    logits = script.start(table)
    older = script.older(table, logits, versions=2)
    options = {"correction": "none", "std": "none", "average": "sum"}
    found = script.update_moments(
        table, build_algorithm("agentic_replay_po", options), logits_RA=logits, behaviour_RA=older, size=2
    )
    chance, past = (script.path_probabilities(table, item) for item in (logits, older))
    rewards = np.array([sum(path.rewards_T) for path in table.paths])
    rows_RA = script.policy_rows(table, logits)
    score = np.zeros((len(table.paths), *logits.shape))
    for at, path in enumerate(table.paths):
        for row, action in zip(path.rows_T, path.actions_T, strict=True):
            score[at, row] -= rows_RA[row]
            score[at, row, action] += 1.0
    past = np.where(rewards > 0.1, past, 0.0)
    past /= past.sum()
    mean, replayed = np.zeros_like(logits), 0.0
    for i, first in enumerate(chance):
        for j, second in enumerate(chance):
            groups = [(first * second, i, j)]
            if rewards[i] == rewards[j] == 0.0:
                replayed += first * second
                groups = [(first * second * p / 2, *pair) for k, p in enumerate(past) for pair in ((k, j), (i, k))]
            for weight, one, two in groups:
                mean += weight * (rewards[one] - rewards[two]) / 2 * (score[one] - score[two]) / 2
    assert replayed > 0.1
    np.testing.assert_allclose(found.mean_RA, mean, rtol=0, atol=1e-10)


def test_an_action_in_hindsight_is_as_likely_as_bayes_says(script: ModuleType) -> None:
    """The climb from the ground: who ended at height 2 climbed for certain; who got nothing may have stopped."""
    table = script.worlds()["climb"]
    logits = np.zeros_like(script.start(table))
    ends = script._ends(table, script.path_probabilities(table, logits))
    told = {}
    for path in table.paths:
        key = (sum(path.rewards_T), path.actions_T[0])
        told[key] = script.hindsight(path, 0, ends, 0.5)
    # A fair coin: stopping on the ground pays 0 with 0.5; climbing pays 0 after a fall at any of three steps.
    falls = 0.5 * 0.2 + 0.5 * 0.8 * (0.5 * 0.2) + 0.5 * 0.8 * (0.5 * 0.8) * (0.5 * 0.2)
    assert told[(0.3, 1)] == pytest.approx(1.0)
    assert told[(1.0, 1)] == pytest.approx(1.0)
    assert told[(0.0, 0)] == pytest.approx(0.5 / (0.5 + falls))
    assert told[(0.0, 1)] == pytest.approx(falls / (0.5 + falls))


def test_preferences_between_two_attempts_push_along_their_difference(script: ModuleType) -> None:
    """At the reference the margin is 0, so a pair's gradient is beta / 2 times the difference of the two scores."""
    table = script.worlds()["corridor"]
    logits = script.start(table)
    dpo, rloo = (
        script.update_moments(table, build_algorithm(name), logits_RA=logits, behaviour_RA=logits, size=2).mean_RA
        for name in ("dpo", "rloo")
    )
    # Of two rewards 0 and 1, rloo gives (score - score') / 2 and dpo 0.1 / 2 times the same difference.
    np.testing.assert_allclose(dpo, 0.1 * rloo, rtol=0, atol=1e-10)


def test_an_expert_s_action_is_preferred_to_another_one_in_its_state(script: ModuleType) -> None:
    """Every ordered pair of attempts, written out; without another action the expert's own are imitated."""
    table = script.worlds()["climb"]
    logits = script.start(table)
    algorithm = build_algorithm("agentic_dpo", script.OPTIONS["agentic_dpo"])
    found = script.update_moments(table, algorithm, logits_RA=logits, behaviour_RA=logits, size=2)
    rows_RA = script.policy_rows(table, logits)

    def score(row: int, action: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        slope = np.zeros((len(rows_RA), 2))
        slope[row] -= rows_RA[row]
        slope[row, action] += 1.0
        return slope

    mean, pairs, beta = np.zeros_like(logits), 0.0, 0.008
    for first, one in zip(script.path_probabilities(table, logits), table.paths, strict=True):
        for second, two in zip(script.path_probabilities(table, logits), table.paths, strict=True):
            ranked = [path for path in (one, two) if sum(path.rewards_T) == 1.0]
            if not ranked:
                continue
            expert, other = ranked[0], two if ranked[0] is one else one
            steps = list(zip(expert.rows_T, expert.actions_T, strict=True))
            apart = [at for at, (a, b) in enumerate(zip(steps, other.actions_T, strict=False)) if a[1] != b]
            if not apart:
                mean += first * second * 0.5 * sum(score(*step) for step in steps) / len(steps)
                continue
            pairs += first * second
            row, action = steps[apart[0]]
            worse = other.actions_T[apart[0]]
            margin = np.log(rows_RA[row, action] / rows_RA[row, worse])
            push = beta / (1.0 + np.exp(beta * margin))
            mean += first * second * (push * (score(row, action) - score(row, worse)) + 0.5 * score(row, action))
    assert pairs > 0
    np.testing.assert_allclose(found.mean_RA, mean, rtol=0, atol=1e-10)


def test_a_tiny_run_prints_rows_and_keeps_the_page_around_them(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nstale figures\n{script.END}\nafter\n")
    arguments = ["--size", "2", "--only", "rloo,sft", "--out", str(page)]
    subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, capture_output=True)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale figures" not in text
    assert "| `rloo` | 1.0000 | 1.000 |" in text
    assert "Left out:\n\n- `sft`: imitates demonstrations." in text
