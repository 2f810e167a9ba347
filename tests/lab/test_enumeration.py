"""Paths of small worlds: they are all there, once, and masks do not tell secrets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from kifu.errors import ArgumentError
from kifu.lab import (
    MdpWorld,
    Outcome,
    World,
    corridor,
    enumerate_paths,
    expected_return,
    objective,
    path_probabilities,
    uniform_policy,
    whole_history,
)
from kifu.lab.enumeration import S


def _uniform_return(world: World[S], max_steps: int) -> float:
    table = enumerate_paths(world, max_steps=max_steps)
    return expected_return(table, np.zeros(table.allowed_RA.shape), gamma=1.0)


def test_paths_of_the_corridor_give_its_exact_value() -> None:
    """1023/2048 under the uniform policy, probabilities summing to 1."""
    table = enumerate_paths(MdpWorld(mdp=corridor()), max_steps=20)
    probability_P = path_probabilities(table, np.zeros(table.allowed_RA.shape))
    assert probability_P.sum() == pytest.approx(1.0, abs=1e-12)
    assert _uniform_return(MdpWorld(mdp=corridor()), 20) == pytest.approx(1023 / 2048, abs=1e-12)


def test_an_observation_map_hides_the_state() -> None:
    """All inner cells look alike: one row, and the same value for the uniform policy."""
    mdp = corridor()
    world = MdpWorld(mdp=mdp, observation_S=("end", "inside", "inside", "inside", "end"))
    table = enumerate_paths(world, max_steps=6)
    assert table.information == ("inside",)
    assert _uniform_return(world, 6) == pytest.approx(objective(mdp, uniform_policy(mdp), max_steps=6), abs=1e-12)


def test_a_policy_with_memory_has_a_row_for_every_history(doors: World[tuple[str, bool, bool]]) -> None:
    """Memoryless: 4 things to see. With memory: one row per node of the tree of histories."""
    memoryless = enumerate_paths(doors, max_steps=3)
    assert set(memoryless.information) == {"start", "red", "blue", "looked"}
    remembering = enumerate_paths(doors, max_steps=3, information=whole_history)
    assert len(remembering.information) == remembering.num_nodes
    assert memoryless.num_nodes == remembering.num_nodes


def test_the_value_of_a_plan_with_memory_is_the_hand_computed_one(doors: World[tuple[str, bool, bool]]) -> None:
    """Look, open the colour seen until it gives way: -.1 + (1 - .25^2) in three steps."""
    table = enumerate_paths(doors, max_steps=3, information=whole_history)
    logits_RA = np.zeros(table.allowed_RA.shape)
    for row, history in enumerate(table.information):
        assert isinstance(history, tuple)
        wanted = 0 if len(history) == 1 else (1 if "red" in history else 2)
        logits_RA[row, wanted] = 200.0
    assert expected_return(table, logits_RA, gamma=1.0) == pytest.approx(-0.1 + 1 - 0.25**2, abs=1e-12)


@dataclass(frozen=True)
class _Leak:
    """The mask depends on what the observation hides."""

    num_actions: int = 2

    def starts(self) -> Sequence[tuple[float, int]]:
        return [(0.5, 0), (0.5, 1)]

    def observe(self, state: int) -> str:
        return "dark"

    def allowed(self, state: int) -> Sequence[int]:
        return (0,) if state == 0 else (0, 1)

    def outcomes(self, state: int, action: int) -> Sequence[Outcome[int]]:
        return [Outcome(probability=1.0, state=state, reward=0.0, terminated=True)]


def test_a_mask_that_tells_the_hidden_state_is_refused() -> None:
    """The leak is named by its observation."""
    with pytest.raises(ArgumentError, match="dark has two masks"):
        enumerate_paths(_Leak(), max_steps=1)


def test_a_world_too_large_to_enumerate_is_refused() -> None:
    """Before memory is used up."""
    with pytest.raises(ArgumentError, match="more than 10 paths"):
        enumerate_paths(MdpWorld(mdp=corridor()), max_steps=20, max_paths=10)
