"""Who acts, as the file states it."""

from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.rollout import ClearedResults, Window
from kifu.training.experiment.layers import HfPolicy, RecurrentPolicy
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import load_experiment
from kifu.training.experiment.strategy import own_agent

TEXT = Path(__file__).parents[3] / "recipes" / "key_door_text.toml"


def test_a_repair_is_off_unless_the_file_names_it() -> None:
    assert own_agent(RecurrentPolicy()).id == "tool_calling/1"
    assert own_agent(HfPolicy(model="tiny")).id == "tool_calling/1"
    loaded = load_experiment(TEXT, overrides=["policy.agent={ type = 'tool_calling', repair = 'enum_arguments/1' }"])
    assert own_agent(loaded.experiment.policy).id == "tool_calling/1+enum_arguments/1"


def test_an_unknown_repair_is_refused_by_its_field() -> None:
    with pytest.raises(ExperimentError, match=r"policy\.agent\.repair.*enum_arguments/1"):
        load_experiment(TEXT, overrides=["policy.agent={ type = 'tool_calling', repair = 'magic' }"])


WINDOW = "policy.history={ type = 'window', turns = 2 }"


def prepared(*sets: str) -> Prepared:
    return prepare(load_experiment(TEXT, profile="check", overrides=["policy.model=tiny", *sets]))


def test_cleared_results_are_part_of_the_protocol() -> None:
    found = prepared("policy.history={ type = 'cleared_results', turns = 3 }")
    assert found.setting.history == ClearedResults(turns=3)
    assert found.protocol.tables["policy"]["history"] == "template/1+cleared_results/1(3)"


def test_a_window_is_part_of_the_protocol_and_its_absence_leaves_it_as_it_was() -> None:
    plain, window = prepared(), prepared(WINDOW)
    assert (plain.setting.history, window.setting.history) == (None, Window(turns=2))
    assert plain.protocol.tables["policy"]["history"] == "template/1"
    assert window.protocol.tables["policy"]["history"] == "template/1+window/1(2)"
    assert window.setting.provenance.history == "template/1+window/1(2)"


@pytest.mark.parametrize("method", ["tree_grpo", "igpo"])
def test_a_window_is_refused_where_a_method_reads_or_goes_on_from_the_middle(method: str) -> None:
    with pytest.raises(ExperimentError, match=rf"policy\.history: credit\.algorithm = `{method}`|gold"):
        prepared(WINDOW, f"credit={{ algorithm = '{method}', gamma = 1.0 }}", "update.group_size=6")


MEMORY = "policy.agent={ type = 'tool_calling', memory = { type = 'key_value', entries = 4 } }"
WORLDS = Path(__file__).parents[1] / "memory_worlds.py"


def free(*sets: str) -> Prepared:
    """As `prepared`, of the recipe that decodes freely."""
    path = TEXT.with_name("key_door_text_sft.toml")
    return prepare(load_experiment(path, profile="check", overrides=["policy.model=tiny", *sets]))


def test_a_memory_is_part_of_the_protocol_and_its_absence_leaves_it_as_it_was() -> None:
    plain, memory, larger = free(), free(MEMORY), free(MEMORY.replace("4", "5"))
    assert plain.agent.memory is None
    assert plain.protocol.tables["policy"]["memory"] == "none outside the context"
    assert memory.protocol.tables["policy"]["memory"] == "key_value/1(entries=4, characters=200)"
    assert len({item.protocol.hash for item in (plain, memory, larger)}) == 3


def test_a_memory_is_refused_where_a_grammar_could_not_spell_its_texts() -> None:
    with pytest.raises(
        ExperimentError, match=r"policy\.agent\.memory: .* which policy\.decoding\.grammar cannot spell"
    ):
        prepared(MEMORY)


@pytest.mark.parametrize(
    ("world", "why"), [("Recalling", "has a tool `recall` of its own"), ("Endless", "a memory ends with its rollout")]
)
def test_a_memory_is_refused_where_the_world_does_not_suit_it(world: str, why: str) -> None:
    with pytest.raises(ExperimentError, match=rf"policy\.agent\.memory: .*{why}"):
        free(MEMORY, f"environment.name={WORLDS}:{world}")
