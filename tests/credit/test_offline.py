"""Advantages from records, against loops over (state, return) pairs."""

import numpy as np
import pytest

from kifu.credit import Episode, TurnFacts, returns_over_state, returns_over_task
from kifu.errors import ArgumentError


def episode(rewards: list[float], states: list[str | None] | None = None) -> Episode:
    turns = () if states is None else tuple(TurnFacts(num_tokens=1, state=state) for state in states)
    return Episode(rewards_K=np.array(rewards), terminated=True, turns=turns, id="train/x")


GROUP = [
    episode([0.0, 0.0, 1.0], ["s", "a", "s"]),
    episode([0.0, -0.5], ["s", "b"]),
    episode([2.0], ["s"]),
    episode([], []),
]


def test_every_turn_is_compared_with_what_its_state_was_followed_by() -> None:
    pairs = []
    for item in GROUP:
        returns = [sum(0.5**j * r for j, r in enumerate(item.rewards_K[k:])) for k in range(item.num_turns)]
        pairs.append(list(zip([turn.state for turn in item.turns], returns, strict=True)))
    expected = [
        [value - np.mean([v for other in pairs for s, v in other if s == state]) for state, value in own]
        for own in pairs
    ]

    found = returns_over_state(GROUP, gamma=0.5)

    assert [values.tolist() for values in found] == [pytest.approx(values, abs=1e-12) for values in expected]
    assert found[0][1] == 0.0, "a state that was seen once"


def test_every_turn_is_compared_with_the_mean_of_the_tasks_first_returns() -> None:
    found = returns_over_task(GROUP, gamma=0.5)

    worth = (0.25 - 0.25 + 2.0) / 3
    assert [values.tolist() for values in found] == [
        pytest.approx(values, abs=1e-12)
        for values in ([0.25 - worth, 0.5 - worth, 1.0 - worth], [-0.25 - worth, -0.5 - worth], [2.0 - worth], [])
    ]


def test_a_turn_without_a_state_key_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"train/x, turn 1: the method needs `state`"):
        returns_over_state([episode([0.0, 1.0], ["s", None])], gamma=1.0)


def test_no_records_give_no_advantages() -> None:
    assert returns_over_task([], gamma=1.0) == returns_over_state([], gamma=1.0) == []
