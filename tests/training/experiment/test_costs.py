"""Where costs enter, as the experiment file says it."""

from pathlib import Path
from typing import Any

import pytest

from kifu.errors import ExperimentError
from kifu.records import Charge, Cost
from kifu.training.experiment.costs import told_costs
from kifu.training.experiment.credit_layers import CreditLayer
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import load_experiment

KEY_DOOR = Path(__file__).parents[3] / "recipes" / "key_door.toml"


def prepared(*sets: str) -> Any:  # noqa: ANN401 (whatever `prepare` gives)
    return prepare(load_experiment(KEY_DOOR, profile="check", overrides=sets))


ALL = (
    "credit.costs={ tokens = { where = 'reward', weight = 0.01 }, turns = { where = 'report' }, "
    "seconds = { where = 'constraint', limit = 30 } }"
)


def test_the_file_says_where_a_cost_enters_and_check_tells_it() -> None:
    found = prepared(ALL)

    assert found.rules.charges == (Charge(cost=Cost.TOKENS, weight=0.01), Charge(cost=Cost.SECONDS, limit=30.0))
    assert told_costs(found.stages[-1].credit) == (
        "tokens: reward, 0.01 less for each",
        "turns: report, nothing is trained on it",
        "seconds: constraint, more than 30 an episode is a failure",
    )


def test_a_limit_of_no_call_is_one_that_can_be_kept_and_is_told_as_what_it_is() -> None:
    found = prepared("credit.costs={ calls = { where = 'constraint', limit = 0 } }")
    assert told_costs(found.stages[-1].credit) == ("calls: constraint, any at all in an episode is a failure",)


def test_charges_are_part_of_the_protocol_and_their_absence_leaves_it_as_it_was() -> None:
    plain, charged = prepared(), prepared(ALL)
    assert "costs" not in plain.protocol.tables["credit"]
    assert charged.protocol.tables["credit"]["costs"]["tokens"] == {"where": "reward", "weight": 0.01}
    assert plain.protocol.hash != charged.protocol.hash


def test_another_place_for_a_cost_leaves_the_old_weight_behind() -> None:
    found = prepared(ALL, "credit.costs.tokens={ where = 'constraint', limit = 9 }")
    assert Charge(cost=Cost.TOKENS, limit=9.0) in found.rules.charges


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ("credit.costs={ tokens = { where = 'reward' } }", "credit.costs.tokens.weight: missing"),
        ("credit.costs={ tokens = { where = 'reward', weight = 0 } }", "credit.costs.tokens.weight"),
        ("credit.costs={ tokens = { where = 'report', limit = 1 } }", "credit.costs.tokens.limit: unknown field"),
        ("credit.costs={ price = { where = 'report' } }", "credit.costs.price"),
        (
            "credit.costs={ turns = { where = 'constraint', limit = 0 } }",
            "credit.costs.turns.limit: found 0, and every",
        ),
        (
            "credit.costs={ tokens = { where = 'constraint', limit = 0.5 } }",
            "credit.costs.tokens.limit: found 0.5, and",
        ),
        ("credit.costs={ seconds = { where = 'constraint', limit = 0 } }", "credit.costs.seconds.limit: found 0, and"),
    ],
)
def test_a_cost_that_cannot_be_meant_is_refused_by_its_field(sets: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says.replace(".", r"\.")):
        prepared(sets)


@pytest.mark.parametrize(
    ("method", "where", "refused"),
    [
        ("rft", "{ where = 'reward', weight = 1 }", True),
        ("maxrl", "{ where = 'reward', weight = 1 }", True),
        ("rft", "{ where = 'constraint', limit = 1 }", False),
        ("grpo", "{ where = 'reward', weight = 1 }", False),
    ],
)
def test_a_cost_as_reward_is_refused_where_a_method_would_not_see_it(method: str, where: str, refused: bool) -> None:
    sets = f"credit={{ algorithm = '{method}', gamma = 1.0, costs = {{ turns = {where} }} }}"
    if not refused:
        cut = "environment.on_truncation=terminal"
        assert len(prepared(sets, "update.group_size=4", cut).rules.charges) == 1
        return
    with pytest.raises(ExperimentError, match=rf"credit\.costs\.turns: where = \"reward\", and `{method}`"):
        prepared(sets, "update.group_size=4")


def test_demonstrations_of_a_warm_start_are_charged_for_nothing() -> None:
    credit = CreditLayer(algorithm="grpo", gamma=1.0, costs={"turns": {"where": "reward", "weight": 1}})  # type: ignore[dict-item]
    assert len(credit.charges) == 1
    warm = "update.warm_start={ type = 'demonstrations', steps = 1, traces_per_step = 2, noise = 0.0, "
    found = prepared(ALL, warm + "optimizer = { type = 'adamw', learning_rate = 0.01 } }")
    assert [len(stage.rules.charges) for stage in found.stages] == [0, 2]
