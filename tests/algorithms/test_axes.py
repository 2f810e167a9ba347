"""Axes are read off the values of two methods, so that a setting shows where it changes something."""

from dataclasses import dataclass

import pytest

from kifu.algorithms import ALGORITHMS, axes_of, build_algorithm, differing_axes, surrogate_of
from kifu.objectives import ClippedRatio, PolicyObjective, ScoreFunction, TokenRatio


def test_two_methods_differ_where_their_values_do_and_nowhere_else() -> None:
    found = differing_axes(build_algorithm("ppo"), build_algorithm("grpo"))

    assert found["reduction"] == ("token", "trajectory")
    assert found["epochs"] == ("4", "1")
    assert found["updates"] == ("policy and critic", "policy")
    assert found["needs value"] == ("yes", "no")
    assert found["entropy bonus"] == ("EntropyBonus(coefficient 0.01)", "none")
    assert {"ratio level", "extreme ratios", "data source", "reference"} & set(found) == set()


def test_one_option_changes_one_axis_of_one_method() -> None:
    found = differing_axes(build_algorithm("grpo"), build_algorithm("grpo", {"clip_high": 0.28}))

    assert set(found) == {"extreme ratios", "option clip_high"}
    assert found["option clip_high"] == ("0.2", "0.28")
    assert ["1.2" in found["extreme ratios"][0], "1.28" in found["extreme ratios"][1]] == [True, True]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_stands_somewhere_on_every_axis_and_differs_from_itself_nowhere(name: str) -> None:
    axes = axes_of(build_algorithm(name))

    assert [axis for axis, place in axes.items() if not place] == []
    assert {"data source", "advantage", "ratio level", "reduction", "group filter", "epochs"} <= set(axes)
    assert differing_axes(build_algorithm(name), build_algorithm(name)) == {}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_whose_card_says_it_takes_no_ratio_has_no_level_of_one(name: str) -> None:
    card, axes = ALGORITHMS[name].card, axes_of(build_algorithm(name))
    assert (axes["ratio level"] == "none") is card.ratio.startswith("none")


def test_the_surrogate_is_found_inside_another_objective() -> None:
    @dataclass
    class Around:
        inner: PolicyObjective

    clip = ClippedRatio(level=TokenRatio())
    assert surrogate_of(Around(PolicyObjective(surrogate=clip))) == clip
    assert surrogate_of(PolicyObjective()) == ScoreFunction()
    assert surrogate_of(build_algorithm("sft").objective()) is None
