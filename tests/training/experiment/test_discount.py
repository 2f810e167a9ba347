"""When a discount must be stated: wherever an episode may have several turns whose returns a method reads."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm
from kifu.envs import Environment, Task, ToolSpec, tool
from kifu.envs.suites.jsonl import questions
from kifu.errors import ExperimentError
from kifu.records import Verdict
from kifu.training.experiment.discount import is_single_answer, reads_returns, with_discount
from kifu.training.experiment.layers import Experiment, TrainStage
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment, parse_experiment
from kifu.training.simple import fill

UPDATE: dict[str, Any] = {
    "steps": 1,
    "prompts_per_step": 2,
    "group_size": 2,
    "optimizer": {"type": "adamw", "learning_rate": 1e-3},
}
NO_RETURNS = {"sft", "dpo", "agentic_dpo"}


class Asked(Environment):
    """One message and no tool."""

    def reset(self, task: Task, seed: int) -> str:
        """Ask."""
        return "?"

    def verify(self) -> Verdict:
        """Say no."""
        return Verdict(success=False)


class Called(Asked):
    """One tool."""

    @tool
    def look(self) -> str:
        """Look."""
        return "."


class Listing(Asked):
    """Lists its tools by itself, none before a reset."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """None yet."""
        return ()


def experiment(**more: Any) -> Experiment:  # noqa: ANN401 (tables of an experiment)
    table = {
        "kifu": 1,
        "environment": {"name": "asked"},
        "policy": {"engine": "recurrent"},
        "credit": {"algorithm": "reinforce"},
        "update": UPDATE,
        **more,
    }
    table = {name: item for name, item in table.items() if item is not None}
    return parse_experiment(table, name="x", folder=Path.cwd(), where="x.toml").experiment


def without_discount(load: Callable[..., Loaded], *overrides: str) -> Loaded:
    """The small key_door experiment as a file that states no discount."""
    loaded = load(*overrides)
    table = loaded.experiment.model_dump(mode="json", by_alias=True, exclude_none=True)
    del table["credit"]["gamma"]
    return parse_experiment({"kifu": 1, **table}, name="mine", folder=Path.cwd(), where="mine.toml")


def test_episodes_of_several_turns_do_not_start_without_a_discount(load: Callable[..., Loaded]) -> None:
    expected = r"^credit\.gamma: missing; .*`key_door` may have several turns.*discount in \[0, 1\].*`gamma = 1\.0`"
    with pytest.raises(ExperimentError, match=expected):
        prepare(without_discount(load))


def test_what_is_stated_is_kept(load: Callable[..., Loaded]) -> None:
    for stated in (0.0, 0.5, 1.0):
        frozen = prepare(load(f"credit.gamma={stated}"))
        assert (frozen.rules.gamma, frozen.protocol.tables["credit"]["gamma"]) == (stated, stated)


@pytest.mark.parametrize("limit", ["task_limits", "collector_limits"])
def test_a_limit_of_one_turn_makes_a_single_answer(limit: str, load: Callable[..., Loaded]) -> None:
    frozen = prepare(without_discount(load, f"environment.{limit}.turns=1", "environment.on_truncation='terminal'"))
    assert frozen.protocol.tables["credit"]["gamma"] == 1.0
    with pytest.raises(ExperimentError, match=r"^credit\.gamma: missing"):
        prepare(without_discount(load, f"environment.{limit}.turns=2"))


def test_questions_are_single_answers(tmp_path: Path) -> None:
    lines = [{"prompt": f"{a} + 1", "answer": str(a + 1)} for a in range(5)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    world = questions(tmp_path / "sums.jsonl", reward="numeric")
    settled = with_discount(experiment(), environment=world, tools=())
    assert settled.credit.gamma == 1.0


@pytest.mark.parametrize(
    ("world", "tools", "single"), [(Asked, (), True), (Called, ("look",), False), (Listing, (), False)]
)
def test_without_tools_the_first_message_is_all(world: type[Environment], tools: tuple[str, ...], single: bool) -> None:
    """A class that lists its tools by itself may have some after a reset."""
    assert is_single_answer(experiment(), environment=world, tools=tools) is single


def test_an_agent_outside_may_ask_as_often_as_it_likes() -> None:
    outside = experiment(policy={"model": "tiny", "agent": {"type": "outside", "run": "agent.py:solve"}})
    assert is_single_answer(outside, environment=Asked, tools=()) is False
    assert is_single_answer(experiment(policy={"model": "tiny"}), environment=Asked, tools=()) is True


def test_every_stage_is_asked_for_its_own() -> None:
    stage = {"type": "train", "credit": {"algorithm": "reinforce", "gamma": 0.5}, "update": UPDATE}
    bare = {**stage, "credit": {"algorithm": "grpo"}}
    both = experiment(credit=None, update=None, stages={"one": bare, "two": stage})
    with pytest.raises(ExperimentError, match=r"^stages\.one\.credit\.gamma: missing.*`grpo`"):
        with_discount(both, environment=Called, tools=("look",))

    settled = with_discount(both, environment=Asked, tools=())
    gammas = [item.credit.gamma for item in settled.stages.values() if isinstance(item, TrainStage)]
    assert (gammas, settled.credit.gamma) == ([1.0, 0.5], 0.5)


def test_only_likelihood_of_demonstrations_and_pairs_reads_no_return() -> None:
    assert {name for name in ALGORITHMS if not reads_returns(build_algorithm(name).plan)} == NO_RETURNS
    for name in sorted(NO_RETURNS):
        found = with_discount(experiment(credit={"algorithm": name}), environment=Called, tools=("look",))
        assert found.credit.gamma == 1.0


def test_a_call_from_python_states_one_and_may_be_told_another() -> None:
    assert fill("key_door", model="recurrent").experiment.credit.gamma == 1.0
    assert fill("key_door", model="recurrent", overrides={"credit.gamma": 0.9}).experiment.credit.gamma == 0.9


def test_every_recipe_states_it_wherever_a_return_is_read() -> None:
    """Read as text: one line `gamma` or one item of a table for every method but those without returns."""
    for path in sorted((Path(__file__).parents[3] / "recipes").glob("*.toml")):
        text = path.read_text()
        for found in re.finditer(r'^(?:credit = \{ )?algorithm = "(\w+)"(.*(?:\n(?!\n|\[).*)*)', text, re.MULTILINE):
            assert found[1] in NO_RETURNS or re.search(r"\bgamma = ", found[2]), f"{path.name}: {found[0]}"
        load_experiment(path)
