"""The words of reinforcement learning as types.

A reward belongs to one transition; a return belongs to a moment and sums what follows it. An agent is more than its
policy: it also decides what the policy gets to see.

Axes: ``A`` actions, ``S`` states, ``T`` transitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np

from kifu.credit import Doubles, discounted_returns
from kifu.errors import ArgumentError

State = NewType("State", int)
"""What the environment is in."""
Observation = NewType("Observation", int)
"""What the agent is shown of it."""
Action = NewType("Action", int)
"""What the agent chooses."""
Reward = NewType("Reward", float)
"""Paid for one transition."""
Return = NewType("Return", float)
"""Discounted sum of the rewards after one moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step of the world."""

    state: State
    action: Action
    reward: Reward
    next_state: State
    terminated: bool
    """Whether the next state is terminal: its future is worth 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Transitions in order, from a start to an end or a cut. An episode is a trajectory that the task ended."""

    transitions: tuple[Transition, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.transitions, self.transitions[1:], strict=False):
            if before.next_state != after.state or before.terminated:
                raise ArgumentError(f"a trajectory goes on from {before.next_state}, found {after.state}")

    @property
    def is_episode(self) -> bool:
        """Whether the task ended it; otherwise it was cut."""
        return bool(self.transitions) and self.transitions[-1].terminated

    def returns(self, *, gamma: float) -> tuple[Return, ...]:
        """``[T]`` the return after each transition began, with nothing after the last one."""
        rewards = [float(step.reward) for step in self.transitions]
        return tuple(Return(float(value)) for value in discounted_returns(rewards, gamma=gamma))


class Policy(Protocol):
    """Chooses an action: deterministic mu(s) or stochastic pi(a | s)."""

    def probabilities(self, observation: Observation) -> Doubles:
        """``[A]`` probability of every action."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeterministicPolicy:
    """mu(s): one action per observation."""

    actions_S: tuple[Action, ...]
    num_actions: int

    def probabilities(self, observation: Observation) -> Doubles:
        """``[A]`` one 1 and zeros."""
        found = np.zeros(self.num_actions)
        found[self.actions_S[observation]] = 1.0
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StochasticPolicy:
    """pi(a | s): a table of probabilities."""

    table_SA: Doubles

    def __post_init__(self) -> None:
        rows_S = self.table_SA.sum(axis=1)
        if bool((self.table_SA < 0).any()) or not bool(np.allclose(rows_S, 1.0, rtol=0, atol=1e-12)):
            raise ArgumentError(f"every row of a policy sums to 1 without negative entries, found sums {rows_S}")

    def probabilities(self, observation: Observation) -> Doubles:
        """``[A]`` the row of the observation."""
        row: Doubles = self.table_SA[observation]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A policy and the rule that turns what happened into what the policy is shown."""

    policy: Policy
    shown: Callable[[Sequence[Observation]], Observation] = lambda seen: seen[-1]
    """From all observations so far to the one the policy is asked with; by default the last."""

    def probabilities(self, seen: Sequence[Observation]) -> Doubles:
        """``[A]`` what the agent does next."""
        return self.policy.probabilities(self.shown(seen))
