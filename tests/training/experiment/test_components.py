"""What may be paid on the way: only components that the environment declares, and the protocol says what they are."""

from collections.abc import Callable

import pytest

from kifu.errors import ExperimentError
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded

Load = Callable[..., Loaded]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["credit.components.cleu=0.1"], r"credit\.components: .*`key_door`.*`cleu`; did you mean `clue`\?"),
        (
            ["credit={ algorithm = 'tara', options = { component = 'clu' } }", "update.group_size=2"],
            r"credit\.options\.component: .*`clu`; did you mean `clue`\?",
        ),
        (
            ["environment.name=corridor", "credit={ algorithm = 'mt_grpo' }", "update.group_size=2"],
            "`mt_grpo` reads reward components of turns, and environment `corridor` declares none",
        ),
        (["environment.name=corridor", "credit.components.clue=1.0"], "`corridor` declares no reward component `clue`"),
    ],
)
def test_a_component_nobody_pays_is_no_experiment(load: Load, overrides: list[str], told: str) -> None:
    with pytest.raises(ExperimentError, match=told):
        prepare(load(*overrides))


def test_the_protocol_declares_what_is_paid_and_nothing_else(load: Load) -> None:
    declared = prepare(load("credit.components.looked=0.1")).protocol.tables["credit"]["declarations"]
    assert list(declared) == ["looked"]
    assert declared["looked"]["is_repeatable"] is True
    assert len(declared["looked"]) == 6
    assert prepare(load()).protocol.tables["credit"]["declarations"] == {}


def test_a_method_that_reads_components_has_them_declared_too(load: Load) -> None:
    grouped = ("update.group_size=2", "environment.on_truncation=terminal")
    one = prepare(load("credit={ algorithm = 'tara', options = { component = 'clue' } }", *grouped))
    every = prepare(load("credit={ algorithm = 'tara' }", *grouped))
    assert list(one.protocol.tables["credit"]["declarations"]) == ["clue"]
    assert set(every.protocol.tables["credit"]["declarations"]) == {"clue", "right_key", "door_open", "looked"}
