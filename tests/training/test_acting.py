"""Who acts, as the file states it."""

from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.training.acting import own_agent
from kifu.training.experiment import load_experiment
from kifu.training.layers import HfPolicy, RecurrentPolicy

TEXT = Path(__file__).parents[2] / "recipes" / "key_door_text.toml"


def test_a_repair_is_off_unless_the_file_names_it() -> None:
    assert own_agent(RecurrentPolicy()).id == "tool_calling/1"
    assert own_agent(HfPolicy(model="tiny")).id == "tool_calling/1"
    loaded = load_experiment(TEXT, overrides=["policy.agent={ type = 'tool_calling', repair = 'enum_arguments/1' }"])
    assert own_agent(loaded.experiment.policy).id == "tool_calling/1+enum_arguments/1"


def test_an_unknown_repair_is_refused_by_its_field() -> None:
    with pytest.raises(ExperimentError, match=r"policy\.agent\.repair.*enum_arguments/1"):
        load_experiment(TEXT, overrides=["policy.agent={ type = 'tool_calling', repair = 'magic' }"])
