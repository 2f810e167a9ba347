"""What the protocol says of an update, method by method, as their papers have it."""

import json

import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm
from kifu.training.experiment.update_record import update_record

CONSTANT_1 = "none: every token weighs the same, divided by the constant 1"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_states_every_field_in_plain_values(name: str) -> None:
    found = update_record(build_algorithm(name), max_age=2)
    assert [field for field, value in found.items() if value in ("", None, [], {})] == []
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "level", "length"),
    [
        ("grpo", "token", "by the tokens of each trajectory"),
        ("dapo", "token", "none: every token weighs the same, long trajectories more"),
        ("dr_grpo", "token", "none: every token weighs the same, divided by the constant 3000"),
        ("gspo", "trajectory, geometric mean over its tokens", "by the tokens of each trajectory"),
        (
            "rloo",
            "none in the loss; measured per token",
            "none: every token weighs the same, divided by the constant 1",
        ),
        ("sft", "none", "none: every token weighs the same, long trajectories more"),
        ("actor_critic", "none in the loss; measured per token", "by the tokens of each turn"),
    ],
)
def test_level_and_length_are_those_of_the_method(name: str, level: str, length: str) -> None:
    found = update_record(build_algorithm(name), max_age=0)
    assert (found["ratio_level"], found["length_normalization"]) == (level, length)


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("rloo", {}, "none: no ratio enters the loss"),
        ("sft", {}, "none: no ratio enters the loss"),
        ("dapo", {}, "no gradient above 1.28 for gains, below 0.8 for losses"),
        ("simpletir", {}, "no gradient above 1.28 for gains, below 0.8 for losses, nor above 3 for losses"),
        ("cispo", {}, "the weight of log pi is capped at 5, no lower cap; every token keeps a gradient"),
        ("sao", {"clip_high": 0.5}, "no gradient outside (0.8, 1.5), whatever the sign of the advantage"),
    ],
)
def test_the_rule_for_extreme_weights_has_the_bounds_of_the_options(
    name: str, options: dict[str, float], rule: str
) -> None:
    assert update_record(build_algorithm(name, options), max_age=0)["extreme_weights"] == rule


def test_each_part_of_the_loss_has_its_own_denominator() -> None:
    assert update_record(build_algorithm("ppo"), max_age=0)["denominators"] == {
        "policy": "token",
        "entropy": "token",
        "value": "turn",
    }
    assert update_record(build_algorithm("grpo", {"average": "turn"}), max_age=0)["denominators"] == {"policy": "turn"}


def test_uses_and_age_count_passes_copies_and_versions() -> None:
    assert update_record(build_algorithm("ppo", {"epochs": 3}), max_age=4) == {
        **update_record(build_algorithm("ppo", {"epochs": 3}), max_age=0),
        "age": "at most 4 versions when trained",
    }
    assert update_record(build_algorithm("ppo", {"epochs": 3}), max_age=0)["updates_per_rollout"] == "3"
    assert (
        update_record(build_algorithm("dupo"), max_age=0)["updates_per_rollout"] == "1, times its copies in the update"
    )


@pytest.mark.parametrize(
    ("name", "selection", "whitening"),
    [
        ("grpo", "KeepInformative", "none"),
        ("starpo_s", "TopSpread (share 0.25)", "over the update, PopulationStd (eps 1e-08)"),
        ("simpletir", "SuccessBand (low 0.1, high 0.9)", "none"),
        ("reinforce_pp", "KeepInformative", "over the update, PopulationStd (eps 1e-08)"),
    ],
)
def test_selection_and_whitening_are_told_with_their_settings(name: str, selection: str, whitening: str) -> None:
    found = update_record(build_algorithm(name), max_age=0)
    assert (found["selection"], found["whitening"]) == (selection, whitening)
