"""Types of the language: rewards and returns, policies behind one interface, agents around policies."""

import numpy as np
import pytest

from kifu.errors import ArgumentError
from kifu.lab import (
    Action,
    Agent,
    DeterministicPolicy,
    Observation,
    Reward,
    State,
    StochasticPolicy,
    Trajectory,
    Transition,
)


def _steps(*rewards: float, terminated: bool = True) -> tuple[Transition, ...]:
    return tuple(
        Transition(
            state=State(at),
            action=Action(0),
            reward=Reward(reward),
            next_state=State(at + 1),
            terminated=terminated and at == len(rewards) - 1,
        )
        for at, reward in enumerate(rewards)
    )


def test_returns_of_the_source_example() -> None:
    """Rewards 1, 0, 0, 10 at gamma .9."""
    trajectory = Trajectory(transitions=_steps(1, 0, 0, 10))
    assert trajectory.returns(gamma=0.9) == pytest.approx((8.29, 8.1, 9.0, 10.0), abs=1e-12)
    assert trajectory.is_episode
    assert not Trajectory(transitions=_steps(1, terminated=False)).is_episode


def test_a_trajectory_with_a_gap_or_beyond_its_end_is_refused() -> None:
    """Each transition starts where the one before arrived, and nothing follows an end."""
    first, second, third = _steps(1, 1, 1)
    with pytest.raises(ArgumentError, match="goes on from"):
        Trajectory(transitions=(first, third))
    with pytest.raises(ArgumentError, match="goes on from"):
        Trajectory(transitions=(third, third))
    assert len(Trajectory(transitions=(first, second, third)).transitions) == 3


def test_deterministic_and_stochastic_policies_answer_the_same_question() -> None:
    """A probability for every action."""
    fixed = DeterministicPolicy(actions_S=(Action(1), Action(0)), num_actions=2)
    table = StochasticPolicy(table_SA=np.array([[0.0, 1.0], [1.0, 0.0]]))
    for state in (0, 1):
        np.testing.assert_array_equal(fixed.probabilities(Observation(state)), table.probabilities(Observation(state)))


def test_an_agent_with_another_memory_acts_differently_on_one_policy() -> None:
    """The policy is inside the agent; the rule that shows it the first observation, not the last, is outside it."""
    policy = StochasticPolicy(table_SA=np.array([[1.0, 0.0], [0.0, 1.0]]))
    seen = [Observation(0), Observation(1)]
    assert Agent(policy=policy).probabilities(seen).tolist() == [0.0, 1.0]
    assert Agent(policy=policy, shown=lambda items: items[0]).probabilities(seen).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5]])
def test_rows_that_are_no_distribution_are_refused(row: list[float]) -> None:
    """Not summing to 1, or negative."""
    with pytest.raises(ArgumentError, match="sums to 1 without negative"):
        StochasticPolicy(table_SA=np.array([row]))
