"""The map of methods: each of them there, and each of them trained by the loop for one step that moves the weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kifu.algorithms import ALGORITHMS
from kifu.errors import ExperimentError
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import parse_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train

TOP = Path(__file__).parents[2]
WORLDS = Path(__file__).with_name("odd_worlds.py")
MAP: dict[str, str] = {
    "PPO": "ppo",
    "REINFORCE": "reinforce",
    "GRPO": "grpo",
    "DAPO": "dapo",
    "Dr. GRPO": "dr_grpo",
    "GSPO": "gspo",
    "Search-R1": "recipes/search_r1_like.toml",
    "ReTool": "recipes/retool_like.toml",
    "Agentic Reinforced Policy Optimization": "agentic_reinforced_po",
    "Agentic Replay Policy Optimization": "agentic_replay_po",
    "AT2PO": "at2po",
    "TRACE, turn credit": "trace_turn_credit",
    "TRACE, rollout budgets": "trace_budget",
    "ToolVerse, TARA": "tara",
    "WebSailor, DUPO": "dupo",
    "transitions as of Agent Lightning": "transitions",
    "Agentic-DPO": "agentic_dpo",
    "SWE-RL": "recipes/swe_rl_like.toml",
}
"""Name in the literature to id or recipe."""
OPTIONS: dict[str, dict[str, Any]] = {
    "aepo": {"initial_rollouts": 4},
    "agentic_dpo": {"negatives": "recorded", "warm_up": 0},
    "agentic_reinforced_po": {"initial_rollouts": 4},
    "at2po": {"initial_rollouts": 4, "expansion_rounds": 2, "beam_size": 2},
    "mt_grpo": {"component": "clue"},
    "tara": {"component": "clue"},
    "trace_budget": {"budget": 16},
    "tree_grpo": {"trees": 2, "rounds": 1, "expansions": 3},
}
"""Set so that a group has 8 attempts, and for what the world pays by the way."""
READS_TEXT = ("hcapo", "igpo", "trace_turn_credit")
"""These let the policy read a text that no rollout held; symbols are none. A language model trains them in
``test_facts.py``."""
OFFLINE = ("agentic_dpo", "dpo", "offline_awr", "sft")


def experiment(method: str, **update: Any) -> dict[str, Any]:  # noqa: ANN401 (fields of the file)
    adam = {"type": "adamw", "learning_rate": 1e-2}
    return {
        "kifu": 1,
        "environment": {"name": f"{WORLDS}:Parity", "decision_model": "tool call, POMDP", "on_truncation": "terminal"},
        "policy": {"engine": "recurrent", "hidden": 16},
        "credit": {"algorithm": method, "options": OPTIONS.get(method, {}), "gamma": 1.0},
        "update": {"steps": 1, "prompts_per_step": 2, "group_size": 8, "optimizer": adam, **update},
        "evaluation": {"tasks": 1},
        "machine": {"threads": 1},
    }


Trained = Callable[[str, dict[str, Any], int], Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains one experiment."""

    def make(name: str, table: dict[str, Any], seed: int) -> Path:
        out = tmp_path_factory.mktemp(name) / "run"
        train(parse_experiment(table, name=name, folder=out.parent, where=name), out=out, seed=seed, quiet=True)
        return out

    return make


@pytest.fixture(scope="module")
def source(trained: Trained) -> Path:
    """Attempts of a policy at random, for the methods that learn from records."""
    return trained("source", experiment("reinforce"), 7)


def weights(run: Path) -> list[str]:
    return [json.loads(line)["weights"] for line in (run / "weights" / "versions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", MAP)
def test_what_the_map_names_is_there(name: str) -> None:
    place = MAP[name]
    assert place in ALGORITHMS or (TOP / place).is_file()


@pytest.mark.parametrize("method", [name for name in ALGORITHMS if name not in READS_TEXT])
def test_one_step_of_every_method_moves_the_weights_and_can_be_audited(
    method: str, trained: Trained, source: Path
) -> None:
    table = experiment(method)
    if method in OFFLINE:
        outcome = "success" if method == "sft" else "all"
        table["update"]["data"] = {"type": "stored", "runs": [str(source)], "outcome": outcome}
    if method == "rlhf_ppo":
        table["credit"]["reward_model"] = {"runs": [str(source)], "steps": 5, "hidden": 8}
    run = trained(method, table, 1)

    before, after = weights(run)
    assert before != after
    assert audit(run).ok


@pytest.mark.parametrize("method", READS_TEXT)
def test_a_method_that_reads_text_says_so_where_there_is_none(method: str, tmp_path: Path) -> None:
    loaded = parse_experiment(experiment(method), name=method, folder=tmp_path, where=method)
    with pytest.raises(ExperimentError, match=rf"`{method}` .*engine `recurrent` reads symbols; use engine = `hf`"):
        prepare(loaded)
