"""Exact answers about finite processes against enumeration and brute force; shaping keeps the optimum."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import ArgumentError
from kifu.lab import (
    Action,
    DeterministicPolicy,
    FiniteMdp,
    StochasticPolicy,
    action_values,
    corridor,
    enumerate_trajectories,
    evaluate,
    objective,
    optimal_actions,
    optimal_values,
    policy_table,
    shaped,
    uniform_policy,
)


def _random(seed: int, *, gamma: float = 0.9, states: int = 4, actions: int = 2) -> FiniteMdp:
    make = np.random.default_rng(seed)
    transition_SAS = make.dirichlet(np.ones(states), size=(states, actions))
    terminal_S = np.zeros(states, dtype=np.bool_)
    terminal_S[-1] = True
    return FiniteMdp(
        transition_SAS=transition_SAS,
        reward_SAS=make.normal(size=(states, actions, states)),
        start_S=np.eye(states)[0],
        terminal_S=terminal_S,
        gamma=gamma,
    )


def _stochastic(seed: int, mdp: FiniteMdp) -> StochasticPolicy:
    make = np.random.default_rng(seed)
    return StochasticPolicy(table_SA=make.dirichlet(np.ones(mdp.num_actions), size=mdp.num_states))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1))
def test_the_objective_is_the_mean_return_over_all_trajectories(seed: int, gamma: float) -> None:
    """J = E[G_0], and the probabilities sum to 1."""
    mdp = _random(seed, gamma=gamma, states=3)
    policy = _stochastic(seed + 1, mdp)
    found = list(enumerate_trajectories(mdp, policy, max_steps=4))
    assert sum(item.probability for item in found) == pytest.approx(1.0, abs=1e-12)
    mean = sum(item.probability * item.trajectory.returns(gamma=gamma)[0] for item in found)
    assert objective(mdp, policy, max_steps=4) == pytest.approx(mean, abs=1e-12)


def test_only_the_policy_s_factors_depend_on_the_policy() -> None:
    """World factors of the same trajectories under two policies are equal, policy factors are not."""
    mdp = _random(3, states=3)
    first = {item.trajectory: item for item in enumerate_trajectories(mdp, _stochastic(1, mdp), max_steps=3)}
    second = {item.trajectory: item for item in enumerate_trajectories(mdp, _stochastic(2, mdp), max_steps=3)}
    assert first.keys() == second.keys()
    assert all(first[t].world_factor == second[t].world_factor for t in first)
    assert any(first[t].policy_factor != second[t].policy_factor for t in first)


@pytest.mark.parametrize("seed", range(4))
def test_value_iteration_finds_the_best_of_all_deterministic_policies(seed: int) -> None:
    """Every one of them evaluated by its own linear system."""
    mdp = _random(seed)
    values = [
        evaluate(mdp, DeterministicPolicy(actions_S=tuple(Action(a) for a in actions), num_actions=2))
        for actions in product(range(2), repeat=mdp.num_states)
    ]
    np.testing.assert_allclose(optimal_values(mdp), np.max(values, axis=0), rtol=0, atol=1e-10)


def test_values_obey_the_bellman_equation() -> None:
    """V(s) = sum_a pi(a | s) Q(s, a), with nothing after a terminal state."""
    mdp = _random(5)
    policy = _stochastic(6, mdp)
    value_S = evaluate(mdp, policy)
    np.testing.assert_allclose(
        (policy_table(mdp, policy) * action_values(mdp, value_S)).sum(axis=1), value_S, atol=1e-12
    )
    assert value_S[-1] == 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_shaping_by_a_potential_keeps_the_set_of_optimal_actions(seed: int, potential: list[float]) -> None:
    """Q falls by Phi(s) for every action alike; one action is doubled so that ties exist."""
    mdp = _random(seed)
    transition_SAS, reward_SAS = mdp.transition_SAS.copy(), mdp.reward_SAS.copy()
    transition_SAS[:, 1], reward_SAS[:2, 1] = transition_SAS[:, 0], reward_SAS[:2, 0]
    tied = FiniteMdp(
        transition_SAS=transition_SAS,
        reward_SAS=reward_SAS,
        start_S=mdp.start_S,
        terminal_S=mdp.terminal_S,
        gamma=mdp.gamma,
    )
    phi_S = np.array(potential)
    assert optimal_actions(shaped(tied, phi_S)) == optimal_actions(tied)
    moved_S = optimal_values(shaped(tied, phi_S)) + np.where(tied.terminal_S, 0.0, phi_S)
    np.testing.assert_allclose(moved_S, optimal_values(tied), rtol=0, atol=1e-9)


def _workshop(*, bonus: float) -> FiniteMdp:
    """State 0: action 0 looks useful and changes nothing (pays ``bonus``), action 1 finishes and pays 1."""
    transition_SAS, reward_SAS = np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    transition_SAS[0, 0, 0] = transition_SAS[0, 1, 1] = 1.0
    transition_SAS[1, :, 1] = 1.0
    reward_SAS[0, 0, 0], reward_SAS[0, 1, 1] = bonus, 1.0
    return FiniteMdp(
        transition_SAS=transition_SAS,
        reward_SAS=reward_SAS,
        start_S=np.array([1.0, 0.0]),
        terminal_S=np.array([False, True]),
        gamma=0.95,
    )


def test_a_tenth_for_every_useful_looking_step_makes_a_loop_and_a_potential_does_not() -> None:
    """.1 / (1 - .95) = 2 > 1: looking busy for ever beats finishing."""
    assert optimal_actions(_workshop(bonus=0.0))[0] == {1}
    assert optimal_actions(_workshop(bonus=0.1))[0] == {0}
    assert optimal_values(_workshop(bonus=0.1))[0] == pytest.approx(2.0)
    assert optimal_actions(shaped(_workshop(bonus=0.0), np.array([0.1, 0.0])))[0] == {1}


def test_a_terminal_potential_that_is_not_zero_would_change_the_optimum() -> None:
    """Ends that pay 1 and 0.9: potentials 0 and 1 paid at the end reverse the choice, shaping does not."""
    transition_SAS, reward_SAS = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    transition_SAS[0, 0, 1] = transition_SAS[0, 1, 2] = 1.0
    transition_SAS[1:, :, 1] = 1.0
    reward_SAS[0, 0, 1], reward_SAS[0, 1, 2] = 1.0, 0.9
    terminal_S, start_S = np.array([False, True, True]), np.eye(3)[0]
    plain = FiniteMdp(
        transition_SAS=transition_SAS, reward_SAS=reward_SAS, start_S=start_S, terminal_S=terminal_S, gamma=1.0
    )
    phi_S = np.array([0.0, 0.0, 1.0])
    naive = FiniteMdp(
        transition_SAS=transition_SAS,
        reward_SAS=reward_SAS + phi_S[None, None, :] - phi_S[:, None, None],
        start_S=start_S,
        terminal_S=terminal_S,
        gamma=1.0,
    )
    assert optimal_actions(plain)[0] == optimal_actions(shaped(plain, phi_S))[0] == {0}
    assert optimal_actions(naive)[0] == {1}


def test_a_walk_without_end_has_no_undiscounted_value() -> None:
    """Refused with the way out; with a limit it has one."""
    mdp = corridor(gamma=1.0)
    turning = DeterministicPolicy(actions_S=tuple(Action(a) for a in (0, 1, 0, 0, 0)), num_actions=2)
    with pytest.raises(ArgumentError, match="give max_steps or a gamma below 1"):
        evaluate(mdp, turning)
    assert evaluate(mdp, turning, max_steps=20)[2] == 0.0
    assert evaluate(mdp, uniform_policy(mdp))[2] == pytest.approx(0.5)


def test_a_loop_that_pays_without_end_is_refused() -> None:
    """Value iteration at gamma 1 says so instead of returning a large number."""
    busy = _workshop(bonus=0.1)
    endless = FiniteMdp(
        transition_SAS=busy.transition_SAS,
        reward_SAS=busy.reward_SAS,
        start_S=busy.start_S,
        terminal_S=busy.terminal_S,
        gamma=1.0,
    )
    with pytest.raises(ArgumentError, match="does not settle"):
        optimal_values(endless)
    assert optimal_values(endless, max_steps=30)[0] == pytest.approx(2.9 + 1.0)


def test_tables_that_are_no_process_are_refused() -> None:
    """Shapes that do not fit, rows that do not sum to 1."""
    good = _workshop(bonus=0.0)
    with pytest.raises(ArgumentError, match="do not fit together"):
        FiniteMdp(
            transition_SAS=good.transition_SAS,
            reward_SAS=good.reward_SAS,
            start_S=np.array([1.0]),
            terminal_S=good.terminal_S,
            gamma=0.9,
        )
    with pytest.raises(ArgumentError, match="transition probabilities sum to 1"):
        FiniteMdp(
            transition_SAS=good.transition_SAS / 2,
            reward_SAS=good.reward_SAS,
            start_S=good.start_S,
            terminal_S=good.terminal_S,
            gamma=0.9,
        )
