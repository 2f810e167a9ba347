"""The state graph of a group against printed numbers and value iteration."""

from random import Random

import numpy as np
import pytest

from kifu.credit import Episode, PopulationStd, SampleStd, TurnFacts
from kifu.credit.graph import End, StateGraph, distance_returns, distances, log_progress, reach_values, state_graph
from kifu.credit.keyed import relative_by_key
from kifu.errors import ArgumentError


def member(states: list[str | None], success: bool | None, *, terminated: bool = True) -> Episode:
    return Episode(
        rewards_K=np.zeros(len(states)),
        terminated=terminated,
        id="T9",
        success=success,
        turns=tuple(TurnFacts(num_tokens=1, state=state) for state in states),
    )


def printed() -> StateGraph:
    """T1 s0 s1 success; T2 s0 s2 failure; T3 s0 s1 s0 s2 success."""
    return state_graph(
        [member(["s0", "s1"], True), member(["s0", "s2"], False), member(["s0", "s1", "s0", "s2"], True)]
    )


def test_the_last_turn_of_a_member_leads_to_its_end() -> None:
    graph = printed()
    assert graph.edges == (
        ("s0", "s1"), ("s1", End.SUCCESS),
        ("s0", "s2"), ("s2", End.FAILURE),
        ("s0", "s1"), ("s1", "s0"), ("s0", "s2"), ("s2", End.SUCCESS),
    )  # fmt: skip
    assert graph.sources_GK == (("s0", "s1"), ("s0", "s2"), ("s0", "s1", "s0", "s2"))
    assert graph.has_success


def test_distances_to_success() -> None:
    assert distances(printed()) == {"s0": 2, "s1": 1, "s2": 1, End.SUCCESS: 0, End.FAILURE: 3}


def test_returns_by_distance_as_printed() -> None:
    raw = distance_returns(printed(), reward=10.0, decay=0.1, edge_cost=0)
    np.testing.assert_allclose(np.concatenate(raw), [1, 10, 1, 0.01, 1, 0.1, 1, 10], rtol=0, atol=1e-12)
    paper = distance_returns(printed(), reward=10.0, decay=0.1, edge_cost=1)
    np.testing.assert_allclose(np.concatenate(paper), np.concatenate(raw) * 0.1, rtol=0, atol=1e-12)


def test_by_distance_two_ways_of_equal_length_look_the_same() -> None:
    graph = printed()
    raw = distance_returns(graph, reward=10.0, decay=0.1, edge_cost=0)
    found = np.concatenate(relative_by_key(raw, graph.sources_GK, scale=SampleStd()))
    np.testing.assert_allclose(found, [0, 0.707107, 0, -0.707107, 0, -0.707107, 0, 0.707107], rtol=0, atol=5e-7)


def test_chance_of_success_as_printed() -> None:
    found = reach_values(printed(), gamma=0.95)
    assert {state: round(found[state], 6) for state in ("s0", "s1", "s2")} == {
        "s0": 0.582728,
        "s1": 0.751796,
        "s2": 0.475,
    }
    assert (found[End.SUCCESS], found[End.FAILURE]) == (1.0, 0.0)


def test_progress_of_the_log_chance_as_printed() -> None:
    found = np.concatenate(log_progress(printed(), gamma=0.95, eps=0.01))
    expected = [0.254744, 0.285291, -0.204406, -3.860730, 0.254744, -0.254744, -0.204406, 0.744440]
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize("scale", [SampleStd(), PopulationStd()])
def test_by_chance_the_two_ways_differ(scale: SampleStd | PopulationStd) -> None:
    graph = printed()
    progress = log_progress(graph, gamma=0.95, eps=0.01)
    found = np.concatenate(relative_by_key(progress, graph.sources_GK, scale=scale))
    by_sign = np.array([1, 1, -1, -1, 1, -1, -1, 1])
    size = [0.866, 0.707, 0.866, 0.707, 0.866, 0.707, 0.866, 0.707] if isinstance(scale, SampleStd) else 1.0
    np.testing.assert_allclose(found, by_sign * np.array(size), rtol=0, atol=5e-4)


@pytest.mark.parametrize("gamma", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_linear_system_has_the_limit_of_repeated_backups(gamma: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    group = [
        member([f"s{int(s)}" for s in random.integers(0, 5, random.integers(1, 9))], bool(random.integers(0, 2)))
        for _ in range(6)
    ]
    graph = state_graph(group)
    value: dict[object, float] = {End.SUCCESS: 1.0, End.FAILURE: 0.0}
    following: dict[str, list[object]] = {}
    for source, target in graph.edges:
        following.setdefault(source, []).append(target)
    for _ in range(4000):
        value |= {s: gamma * sum(value.get(t, 0.0) for t in ts) / len(ts) for s, ts in following.items()}
    found = reach_values(graph, gamma=gamma)
    for state in following:
        assert found[state] == pytest.approx(value[state], abs=1e-9)


@pytest.mark.parametrize("gamma", [0.95, 1.0])
def test_states_on_cycles_and_on_none_satisfy_the_equation(gamma: float) -> None:
    """Phi(s) visits(s) = gamma sum of Phi over what followed, whatever cycles lie in one another."""
    random = Random(3)
    for _ in range(40):
        group = [
            member([random.choice("abcdefghijkl") for _ in range(random.randint(1, 9))], random.random() < 0.5)
            for _ in range(random.randint(1, 5))
        ]
        graph = state_graph(group)
        found = reach_values(graph, gamma=gamma)
        assert set(found) == {End.SUCCESS, End.FAILURE, *(source for source, _ in graph.edges)}
        for state in {source for source, _ in graph.edges}:
            after = [found[target] for source, target in graph.edges if source == state]
            assert found[state] * len(after) == pytest.approx(gamma * sum(after), abs=1e-12)


def test_as_many_states_as_a_long_group_visits_are_no_system_of_as_many_equations() -> None:
    """One matrix of all of them would take 3 GB; every state but the two on a cycle stands alone."""
    states: list[str | None] = [f"s{at}" for at in range(20_000)]
    found = dict(reach_values(state_graph([member([*states, "s19998", "s19999"], True)]), gamma=1.0))
    assert found.pop(End.FAILURE) == 0.0
    assert min(found.values()) == pytest.approx(1.0)
    assert max(found.values()) == pytest.approx(1.0)


def test_without_a_success_nothing_is_closer_to_it() -> None:
    graph = state_graph([member(["a", "b"], False), member(["a"], False)])
    assert not graph.has_success
    assert [item.tolist() for item in distance_returns(graph, reward=10.0, decay=0.1, edge_cost=0)] == [[0, 0], [0]]
    assert [item.tolist() for item in log_progress(graph, gamma=0.95, eps=0.01)] == [[0, 0], [0]]


def test_what_a_graph_needs_is_named_where_it_is_missing() -> None:
    with pytest.raises(ArgumentError, match="T9, turn 1: the method needs `state`"):
        state_graph([member(["a", None], True)])
    with pytest.raises(ArgumentError, match="T9: the method needs `success`"):
        state_graph([member(["a"], None)])
    with pytest.raises(ArgumentError, match="T9, `outcome`: the episode was cut"):
        state_graph([member(["a"], True, terminated=False)])
    with pytest.raises(ArgumentError, match="gamma of a state graph"):
        reach_values(printed(), gamma=0.0)
    with pytest.raises(ArgumentError, match="floor of Phi"):
        log_progress(printed(), gamma=0.9, eps=0.0)


def test_a_member_without_turns_adds_no_edge() -> None:
    assert state_graph([member([], None), member(["a"], True)]).edges_GK == ((), (("a", End.SUCCESS),))
