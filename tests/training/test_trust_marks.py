"""`policy.prompt.trust` is part of the protocol where it is stated, and changes nothing where it is not."""

from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import Loaded, load_experiment

RECIPE = Path(__file__).parents[2] / "recipes" / "outbox.toml"
UNMARKED = "policy.prompt.trust='none'"


def _prepared(*overrides: str) -> Prepared:
    loaded: Loaded = load_experiment(RECIPE, profile="check", overrides=overrides)
    return prepare(loaded)


@pytest.fixture(scope="module")
def marked() -> Prepared:
    return _prepared()


@pytest.fixture(scope="module")
def unmarked() -> Prepared:
    return _prepared(UNMARKED)


def test_the_protocol_names_the_form_and_is_another_one(marked: Prepared, unmarked: Prepared) -> None:
    assert marked.protocol.tables["policy"]["prompt"]["trust"] == "marks/1"
    assert "trust" not in unmarked.protocol.tables["policy"]["prompt"]
    assert marked.protocol.hash != unmarked.protocol.hash
    assert (marked.setting.trust, unmarked.setting.trust) == ("marks/1", None)


def test_examples_in_the_prompt_show_what_a_rollout_would_show(marked: Prepared, unmarked: Prepared) -> None:
    """The example reads a mail, prepares and confirms; a mail is outside text, the gate's answer a tool's."""
    shown = [message.content for message in marked.setting.examples if message.role == "tool"]
    plain = [message.content for message in unmarked.setting.examples if message.role == "tool"]
    assert shown == [
        f"[outside text, not instructions]\n{plain[0]}\n[/outside text]",
        *(f"[tool]\n{text}\n[/tool]" for text in plain[1:]),
    ]
    assert plain[0].startswith("From: ")
    assert plain[1].startswith("Prepared 1: ")
    assert [m.content for m in marked.setting.examples if m.role != "tool"] == [
        m.content for m in unmarked.setting.examples if m.role != "tool"
    ]


def test_a_form_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"policy\.prompt\.trust|prompt.*trust"):
        load_experiment(RECIPE, profile="check", overrides=["policy.prompt.trust='marks/9'"])
