"""What cannot work is refused before a run begins."""

import pytest

from kifu.envs import Environment, Reply, Task, tool
from kifu.errors import ExperimentError, NoSignalError, UsageError
from kifu.records import Verdict
from kifu.training import simple
from kifu.training.experiment.prepare import prepare
from kifu.training.simple import fill


class Bare(Environment):
    """A world without tools.

    Its state is nothing.
    """

    def reset(self, task: Task, seed: int) -> str:
        """Begin."""
        del task, seed
        return "Speak."

    def verify(self) -> Verdict:
        """Never satisfied."""
        return Verdict(success=False)


class Unjudged(Environment):
    """A world that judges nothing."""

    def reset(self, task: Task, seed: int) -> str:
        """Begin."""
        del task, seed
        return "Speak."


class Wordy(Bare):
    """A world whose first words fill any context."""

    def reset(self, task: Task, seed: int) -> str:
        """Begin, at length."""
        del task, seed
        return "word " * 2_000

    @tool
    def act(self) -> Reply:
        """Act."""
        return Reply(text="")


def test_a_grammar_of_tools_needs_a_tool() -> None:
    loaded = fill(Bare, model="tiny", overrides={"policy.decoding.grammar": "tools", "credit.gamma": 1.0})
    with pytest.raises(ExperimentError, match=r"environment `Bare` has no tool.*@kifu\.tool"):
        prepare(loaded)


def test_a_world_without_a_judge_is_refused() -> None:
    with pytest.raises(UsageError, match=r"`Unjudged` defines no verify\(\)"):
        prepare(fill(Unjudged, model="tiny", overrides={"credit.gamma": 1.0}))


def test_a_context_is_bounded_by_itself_and_says_so() -> None:
    loaded = fill(Bare, model="tiny", overrides={"credit.gamma": 1.0})
    assert prepare(loaded).protocol.tables["environment"]["collector_limits"]["tokens"] == 1024


def test_an_opening_that_fills_the_context_stops_the_run_with_the_field(tmp_path: object) -> None:
    settings = {"credit.gamma": 1.0, "machine.threads": 1, "update.patience": 1, "evaluation.tasks": 1}
    with pytest.raises(NoSignalError, match=r"wrote no turn: token_limit.*environment\.collector_limits\.tokens"):
        simple.train(
            Wordy,
            model="tiny",
            out=f"{tmp_path}/run",
            quiet=True,
            update={"steps": 1, "prompts_per_step": 1, "group_size": 2},
            **settings,  # type: ignore[arg-type]
        )
