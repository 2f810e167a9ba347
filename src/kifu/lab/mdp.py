"""A finite Markov decision process and exact answers about it.

Axes: ``S`` states, ``A`` actions, ``T`` steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kifu.credit import Doubles
from kifu.credit.arrays import check_gamma
from kifu.errors import ArgumentError
from kifu.lab.language import Action, Observation, Policy, Reward, State, Trajectory, Transition


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FiniteMdp:
    """(S, A, P, R, rho0, gamma) as tables."""

    transition_SAS: Doubles
    """P(s' | s, a)."""
    reward_SAS: Doubles
    """R(s, a, s')."""
    start_S: Doubles
    """rho0."""
    terminal_S: npt.NDArray[np.bool_]
    """States in which the episode is over: nothing is chosen or paid there. For a token model, the state after EOS."""
    gamma: float
    reward_source: str = "environment"
    """Who computes the reward, apart from the dynamics: the environment, a verifier, a judge."""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        states, actions = self.transition_SAS.shape[:2]
        shapes = (self.transition_SAS.shape, self.reward_SAS.shape, self.start_S.shape, self.terminal_S.shape)
        expected = ((states, actions, states), (states, actions, states), (states,), (states,))
        if shapes != expected:
            raise ArgumentError(f"tables of shapes {shapes} do not fit together; expected {expected}")
        for name, table in (("transition", self.transition_SAS[~self.terminal_S]), ("start", self.start_S)):
            sums = table.sum(axis=-1)
            if bool((table < 0).any()) or not bool(np.allclose(sums, 1.0, rtol=0, atol=1e-12)):
                raise ArgumentError(f"{name} probabilities sum to 1 without negative entries, found sums {sums}")

    @property
    def num_states(self) -> int:
        """Size of S."""
        return int(self.transition_SAS.shape[0])

    @property
    def num_actions(self) -> int:
        """Size of A."""
        return int(self.transition_SAS.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTrajectory:
    """A trajectory with the two factors of its probability."""

    trajectory: Trajectory
    policy_factor: float
    """Product of pi(a | s): the only part that depends on the policy's parameters."""
    world_factor: float
    """rho0 times the product of P."""

    @property
    def probability(self) -> float:
        """p(tau) = rho0 * product of pi * product of P."""
        return self.policy_factor * self.world_factor


def policy_table(mdp: FiniteMdp, policy: Policy) -> Doubles:
    """``[S, A]`` probabilities of a policy that sees the state."""
    rows = [policy.probabilities(Observation(state)) for state in range(mdp.num_states)]
    table_SA: Doubles = np.array(rows, dtype=np.float64)
    return table_SA


def evaluate(mdp: FiniteMdp, policy: Policy, *, max_steps: int | None = None) -> Doubles:
    """``[S]`` exact value of every state.

        V = r_pi + gamma P_pi V                  without a limit, a linear system
        V_n = r_pi + gamma P_pi V_{n-1}, V_0 = 0  with a limit: what the remaining n steps are worth

    Raises:
        ArgumentError: gamma is 1 and the policy can go on for ever, so that no finite value is defined.
    """
    table_SA = policy_table(mdp, policy)
    reward_S, chain_SS = _chain(mdp, table_SA)
    if max_steps is not None:
        value_S: Doubles = np.zeros(mdp.num_states)
        for _ in range(max_steps):
            value_S = np.asarray(reward_S + mdp.gamma * (chain_SS @ value_S), dtype=np.float64)
        return value_S
    system_SS = np.eye(mdp.num_states) - mdp.gamma * chain_SS
    if mdp.gamma == 1.0 and np.abs(np.linalg.eigvals(chain_SS)).max() > 1.0 - 1e-12:
        raise ArgumentError("with gamma 1 this policy can go on for ever; give max_steps or a gamma below 1")
    return np.asarray(np.linalg.solve(system_SS, reward_S), dtype=np.float64)


def objective(mdp: FiniteMdp, policy: Policy, *, max_steps: int | None = None) -> float:
    """``J = E[G_0]``: the value of the start distribution."""
    return float(np.sum(mdp.start_S * evaluate(mdp, policy, max_steps=max_steps)))


def action_values(mdp: FiniteMdp, value_S: Doubles) -> Doubles:
    """``[S, A]`` ``Q(s, a) = sum_s' P(s' | s, a) (R(s, a, s') + gamma V(s'))``; 0 in terminal states."""
    live_SAS = mdp.transition_SAS * ~mdp.terminal_S[:, None, None]
    q_SA: Doubles = (live_SAS * (mdp.reward_SAS + mdp.gamma * np.where(mdp.terminal_S, 0.0, value_S))).sum(axis=2)
    return q_SA


def optimal_values(mdp: FiniteMdp, *, max_steps: int | None = None, tolerance: float = 1e-13) -> Doubles:
    """``[S]`` value of the best policy by value iteration; with a limit, of the best policy that counts its steps.

    Raises:
        ArgumentError: it does not settle, which gamma 1 without a limit allows.
    """
    value_S: Doubles = np.zeros(mdp.num_states)
    for _ in range(100_000 if max_steps is None else max_steps):
        better_S: Doubles = action_values(mdp, value_S).max(axis=1)
        settled = max_steps is None and bool(np.abs(better_S - value_S).max() <= tolerance)
        value_S = better_S
        if settled:
            return value_S
    if max_steps is None:
        raise ArgumentError("value iteration does not settle: with gamma 1 a loop can pay without end")
    return value_S


def optimal_actions(mdp: FiniteMdp, *, tolerance: float = 1e-9) -> tuple[frozenset[Action], ...]:
    """``[S]`` every action that is as good as the best one; empty in terminal states."""
    q_SA = action_values(mdp, optimal_values(mdp))
    best_S = q_SA.max(axis=1)
    return tuple(
        frozenset()
        if mdp.terminal_S[state]
        else frozenset(Action(a) for a in range(mdp.num_actions) if q_SA[state, a] >= best_S[state] - tolerance)
        for state in range(mdp.num_states)
    )


def enumerate_trajectories(mdp: FiniteMdp, policy: Policy, *, max_steps: int) -> Iterator[WeightedTrajectory]:
    """Every trajectory of positive probability, ended by the task or cut after ``max_steps``. For small cases."""
    table_SA = policy_table(mdp, policy)
    for start in np.flatnonzero(mdp.start_S):
        root = (State(int(start)), (), 1.0, float(mdp.start_S[start]))
        stack: list[tuple[State, tuple[Transition, ...], float, float]] = [root]
        while stack:
            state, steps, chosen, world = stack.pop()
            if mdp.terminal_S[state] or len(steps) == max_steps:
                yield WeightedTrajectory(
                    trajectory=Trajectory(transitions=steps), policy_factor=chosen, world_factor=world
                )
                continue
            for action in np.flatnonzero(table_SA[state]):
                for after in np.flatnonzero(mdp.transition_SAS[state, action]):
                    step = Transition(
                        state=state,
                        action=Action(int(action)),
                        reward=Reward(float(mdp.reward_SAS[state, action, after])),
                        next_state=State(int(after)),
                        terminated=bool(mdp.terminal_S[after]),
                    )
                    likely = float(table_SA[state, action]), float(mdp.transition_SAS[state, action, after])
                    stack.append((step.next_state, (*steps, step), chosen * likely[0], world * likely[1]))


def shaped(mdp: FiniteMdp, potential_S: Doubles) -> FiniteMdp:
    """The same process with ``F = gamma Phi(s') - Phi(s)`` added to every reward; terminal states have potential 0."""
    phi_S = np.where(mdp.terminal_S, 0.0, potential_S)
    return FiniteMdp(
        transition_SAS=mdp.transition_SAS,
        reward_SAS=mdp.reward_SAS + mdp.gamma * phi_S[None, None, :] - phi_S[:, None, None],
        start_S=mdp.start_S,
        terminal_S=mdp.terminal_S,
        gamma=mdp.gamma,
        reward_source=f"{mdp.reward_source} + shaping",
    )


def _chain(mdp: FiniteMdp, table_SA: Doubles) -> tuple[Doubles, Doubles]:
    joint_SAS = table_SA[:, :, None] * mdp.transition_SAS * ~mdp.terminal_S[:, None, None]
    reward_S: Doubles = (joint_SAS * mdp.reward_SAS).sum(axis=(1, 2))
    chain_SS: Doubles = joint_SAS.sum(axis=1) * ~mdp.terminal_S[None, :]
    return reward_S, chain_SS
