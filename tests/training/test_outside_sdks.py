"""The recipe's agents, each with its own library in its own environment: what is recorded does not depend on them."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kifu
from kifu.records import Purpose, RunReader
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.run import train
from sdk_envs import interpreter

TOP = Path(__file__).parents[2]
SMALL = (
    "machine.threads=1",
    "evaluation.tasks=1",
    "update.steps=1",
    "update.prompts_per_step=1",
    "update.group_size=2",
    "update.warm_start.traces_per_step=3",
)


def demonstrated(run: Path) -> list[list[tuple[str, list[int]]]]:
    """Every demonstration as its spans: who wrote which tokens."""
    shown = [item for item in RunReader(run).trajectories() if item.key.purpose is Purpose.DEMONSTRATION]
    return [[(span.origin.value, span.token_ids.tolist()) for span in record.tapes[0].spans] for record in shown]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[str, list[int]]]]:
    """What the agent without any library leaves in the record."""
    run = tmp_path_factory.mktemp("plain") / "run"
    train(load_experiment(TOP / "recipes" / "any_agent.toml", profile="check", overrides=SMALL), out=run, quiet=True)
    return demonstrated(run)


@pytest.mark.parametrize(
    ("agent", "environment"),
    [("openai_calc", "openai-3"), ("openai_calc", "openai-2"), ("langgraph_calc", "langgraph")],
)
def test_an_agent_with_a_library_leaves_the_same_tokens_as_one_without(
    agent: str, environment: str, plain: list[list[tuple[str, list[int]]]], tmp_path: Path
) -> None:
    overrides = [
        *SMALL,
        f'policy.agent.run="agents/{agent}.py:solve"',
        f'machine.agent_python="{interpreter(environment)}"',
    ]
    train(
        load_experiment(TOP / "recipes" / "any_agent.toml", profile="check", overrides=overrides),
        out=tmp_path / "run",
        quiet=True,
    )
    assert len(plain) == 6
    assert demonstrated(tmp_path / "run") == plain
    report = audit(tmp_path / "run")
    assert (report.problems, report.ledger_closed) == ((), True)
    assert report.max_logprob_error is not None
    assert report.max_logprob_error < 1e-4


@pytest.mark.parametrize("name", ["openai_calc", "langgraph_calc", "urllib_calc"])
def test_the_recipes_agents_are_short_and_know_nothing_of_kifu(name: str) -> None:
    source = (TOP / "recipes" / "agents" / f"{name}.py").read_text()
    assert source.count("\n") < 60
    assert "kifu" not in source


def test_the_pages_example_trains_an_agent_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kifu, "train", kifu.train)  # the audit loads the changed script, which makes it smaller
    page = (TOP / "docs" / "gateway.md").read_text().partition("## Train the agent you have")[2].partition("\n## ")[0]
    agent, script = (block.partition("\n```")[0] for block in page.split("```python\n")[1:3])
    lines = [line for text in (agent, script) for line in text.splitlines() if line.strip()]
    assert len(lines) <= 20, "what a user writes fits in 20 lines"
    (tmp_path / "my_agent.py").write_text(agent)
    (tmp_path / "questions.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{at}?", "answer": "e"}) for at in range(8))
    )
    small = textwrap.dedent(f"""
        kifu.train = __import__("functools").partial(kifu.train, quiet=True, **{{
            "machine.agent_python": {str(interpreter("openai-3"))!r}, "machine.threads": 1, "evaluation.tasks": 1,
            "update.steps": 1, "update.prompts_per_step": 1, "update.group_size": 2,
            "policy.decoding.max_new_tokens": 8}})
    """)
    changed = script.replace('model="smollm2-135m"', 'model="tiny", out="run"').replace(
        "import kifu\n", f"import kifu\n{small}"
    )
    (tmp_path / "script.py").write_text(changed)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = audit(tmp_path / "run")
    assert (report.problems, report.ledger_closed) == ((), True)
    assert sum(item.key.purpose is Purpose.TRAIN for item in RunReader(tmp_path / "run").trajectories()) == 2
