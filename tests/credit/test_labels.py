"""Labels of turns: printed targets, means over equal actions, and a critic in hindsight against exact values."""

from itertools import product

import numpy as np
import pytest

from kifu.credit import Episode, Label, TurnFacts, hindsight_labels, pooled_targets, process_targets
from kifu.credit.labels import Direction
from kifu.errors import ArgumentError


def test_the_printed_targets_of_both_directions() -> None:
    assert process_targets(1.0, turns=3, gamma=0.95, direction="from_start") == pytest.approx([1.0, 0.975, 0.95125])
    assert process_targets(1.0, turns=3, gamma=0.95, direction="to_end") == pytest.approx([0.95125, 0.975, 1.0])


@pytest.mark.parametrize("direction", ["from_start", "to_end"])
def test_a_failure_mirrors_a_success_and_a_draw_says_nothing(direction: Direction) -> None:
    def targets(score: float) -> list[float]:
        return [float(value) for value in process_targets(score, turns=4, gamma=0.9, direction=direction)]

    assert targets(0.0) == pytest.approx([1.0 - value for value in targets(1.0)])
    assert targets(0.5) == [0.5] * 4
    assert process_targets(1.0, turns=0, gamma=0.9, direction="to_end").tolist() == []


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan")])
def test_a_score_outside_the_unit_interval_is_refused(score: float) -> None:
    with pytest.raises(ArgumentError, match=r"needs a score in \[0, 1\]"):
        process_targets(score, turns=1, gamma=0.9, direction="to_end")


def attempt(outcome: float | None, *turns: tuple[str, str], name: str = "x") -> Episode:
    facts = tuple(TurnFacts(num_tokens=1, state=state, action=action) for state, action in turns)
    return Episode(rewards_K=np.zeros(len(turns)), terminated=True, turns=facts, outcome=outcome, id=name)


def test_equal_actions_in_equal_states_share_the_mean_of_their_targets() -> None:
    group = [attempt(1.0, ("s", "a"), ("t", "b")), attempt(0.0, ("s", "a"), ("s", "a")), attempt(0.0, ("s", "b"))]
    targets = [np.array([0.9, 0.8]), np.array([0.3, 0.0]), np.array([0.1])]

    found = pooled_targets(group, targets)

    shared = (0.9 + 0.3 + 0.0) / 3
    assert [values.tolist() for values in found] == [
        pytest.approx(values) for values in ([shared, 0.8], [shared, shared], [0.1])
    ]


class TestHindsight:
    def test_a_turn_is_good_when_those_who_did_it_ended_better_than_those_who_were_there(self) -> None:
        group = [
            attempt(1.0, ("s", "left"), ("u", "open")),
            attempt(0.0, ("s", "right"), ("v", "open")),
            attempt(0.0, ("s", "right"), ("s", "left"), ("u", "shut")),
            attempt(None, ("s", "left")),
        ]

        assert [[str(label) for label in labels] for labels in hindsight_labels(group)] == [
            ["good", "good"],
            ["bad", "neutral"],
            ["bad", "good", "bad"],
            ["neutral"],
        ]

    def test_small_differences_are_neutral_within_the_tolerance(self) -> None:
        group = [attempt(0.6, ("s", "a")), attempt(0.5, ("s", "b"))]

        assert hindsight_labels(group, tolerance=0.06) == [[Label.NEUTRAL], [Label.NEUTRAL]]
        assert hindsight_labels(group, tolerance=0.04) == [[Label.GOOD], [Label.BAD]]

    def test_on_every_trajectory_of_a_small_world_the_labels_are_signs_of_exact_advantages(self) -> None:
        """Two binary choices under a uniform policy, all four trajectories once: Q - V is exact there."""
        reward = {("a", "a"): 1.0, ("a", "b"): 0.0, ("b", "a"): 0.25, ("b", "b"): 0.25}
        group = [
            attempt(reward[first, second], ("s", first), (f"s{first}", second)) for first, second in product("ab", "ab")
        ]
        q_first = {first: (reward[first, "a"] + reward[first, "b"]) / 2 for first in "ab"}

        found = hindsight_labels(group)

        for (first, second), labels in zip(product("ab", "ab"), found, strict=True):
            exact = [q_first[first] - sum(q_first.values()) / 2, reward[first, second] - q_first[first]]
            assert [str(label) for label in labels] == [
                "good" if x > 0 else "bad" if x < 0 else "neutral" for x in exact
            ]

    def test_missing_facts_are_named(self) -> None:
        silent = Episode(rewards_K=np.zeros(1), terminated=True, turns=(TurnFacts(num_tokens=1),), outcome=1.0, id="x")
        with pytest.raises(ArgumentError, match=r"x, turn 0: the method needs `state`"):
            hindsight_labels([silent])
