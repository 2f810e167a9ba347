"""The states a group visited as one graph, and credit of its edges.

Nodes are state keys; the last turn of a member leads to SUCCESS or to FAILURE, whatever state its episode ended in. The
methods assume that equal keys are equal states and that an action's effect depends on the state alone.

Axes: ``G`` members, ``K`` turns of one member.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np

from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.errors import ArgumentError


class End(Enum):
    """Where a finished episode ends in the graph."""

    SUCCESS = "success"
    FAILURE = "failure"


Node: TypeAlias = str | End
Edge: TypeAlias = tuple[str, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGraph:
    """Every transition of a group, with its repetitions."""

    edges_GK: tuple[tuple[Edge, ...], ...]
    """``[G][K]`` source and target of each turn."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All of them, member after member."""
        return tuple(edge for edges_K in self.edges_GK for edge in edges_K)

    @property
    def sources_GK(self) -> tuple[tuple[str, ...], ...]:
        """``[G][K]`` state each turn started in."""
        return tuple(tuple(source for source, _ in edges_K) for edges_K in self.edges_GK)

    @property
    def has_success(self) -> bool:
        """Whether any member succeeded."""
        return any(target is End.SUCCESS for _, target in self.edges)


def state_graph(group: Sequence[Episode]) -> StateGraph:
    """Merge a group's episodes by state key.

    Raises:
        ArgumentError: a turn has no state key, or nobody knows whether a member succeeded.
    """
    found: list[tuple[Edge, ...]] = []
    for episode in group:
        states = [str(turn.state) for turn in episode.facts("state")]
        if states and not episode.terminated:
            raise ArgumentError(
                f"{episode.place()}, `outcome`: the episode was cut, so its last turn leads neither to success nor to "
                "failure; treat cuts as `exclude` or `terminal`"
            )
        if states and episode.success is None:
            raise episode.lacking("success")
        end = End.SUCCESS if episode.success else End.FAILURE
        found.append(tuple(zip(states, [*states[1:], end], strict=True)) if states else ())
    return StateGraph(edges_GK=tuple(found))


def distances(graph: StateGraph) -> Mapping[Node, int]:
    """Fewest observed transitions from every node to SUCCESS; one more than the largest where there is no way."""
    before: dict[Node, set[str]] = {}
    for source, target in graph.edges:
        before.setdefault(target, set()).add(source)
    found: dict[Node, int] = {End.SUCCESS: 0}
    queue: deque[Node] = deque([End.SUCCESS])
    while queue:
        node = queue.popleft()
        for source in before.get(node, ()):
            if source not in found:
                found[source] = found[node] + 1
                queue.append(source)
    beyond = max(found.values()) + 1
    return {node: found.get(node, beyond) for node in _nodes(graph)} | {End.SUCCESS: 0}


def distance_returns(graph: StateGraph, *, reward: float, decay: float, edge_cost: int) -> tuple[Doubles, ...]:
    """``[G][K]`` ``reward decay^(d(s') + edge_cost)`` of every turn (GraphGPO, arXiv 2605.26684).

    The authors' recipe has edge_cost 0, the paper's equation 4 has 1. All 0 where no member succeeded.
    """
    if not graph.has_success:
        return tuple(np.zeros(len(edges_K)) for edges_K in graph.edges_GK)
    d = distances(graph)
    return tuple(
        np.array([reward * decay ** (d[target] + edge_cost) for _, target in edges_K], dtype=np.float64)
        for edges_K in graph.edges_GK
    )


def reach_values(graph: StateGraph, *, gamma: float) -> Mapping[Node, float]:
    """Discounted chance of success under the group's own choices (GraphHCA, arXiv 2609.35084).

        Phi(s) = gamma sum_{s'} q(s' | s) Phi(s'),   Phi(SUCCESS) = 1,   Phi(FAILURE) = 0

    q counts transitions. Cycles are allowed: with gamma < 1, or every state leading on to an end, the linear system has
    one solution, and it is solved exactly.
    """
    if not 0.0 < gamma <= 1.0:
        raise ArgumentError(f"gamma of a state graph must lie in (0, 1], found {gamma}")
    after: dict[str, Counter[Node]] = {}
    for source, target in graph.edges:
        after.setdefault(source, Counter())[target] += 1
    found: dict[Node, float] = {End.SUCCESS: 1.0, End.FAILURE: 0.0}
    for states in _cycles(after):
        found |= _solved(states, after, known=found, gamma=gamma)
    return found


def _solved(
    states: Sequence[str], after: Mapping[str, Counter[Node]], *, known: Mapping[Node, float], gamma: float
) -> Mapping[Node, float]:
    """Phi of states that lead to one another, given that of all others they lead to."""
    at: dict[Node, int] = {state: index for index, state in enumerate(states)}
    flow, reached = np.zeros((len(states), len(states))), np.zeros(len(states))
    for row, state in enumerate(states):
        for target, count in after.get(state, {}).items():
            flow[row, row] += count
            if target in at:
                flow[row, at[target]] -= gamma * count
            else:
                reached[row] += gamma * count * known[target]
    phi = np.linalg.solve(flow, reached)
    return {state: float(value) for state, value in zip(states, phi, strict=True)}


def _cycles(after: Mapping[str, Mapping[Node, int]]) -> Iterator[list[str]]:
    """States that lead to one another, together, after all others they lead to (Tarjan, 1972).

    A state on no cycle stands alone, so that a group of a thousand states is no system of a thousand equations.
    """
    onward = {state: [target for target in targets if isinstance(target, str)] for state, targets in after.items()}
    rest = {state: iter(targets) for state, targets in onward.items()}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    opened: list[str] = []
    closed: set[str] = set()
    for root in onward:
        path = [root]
        while path:
            state = path[-1]
            if state not in number:
                number[state] = lowest[state] = len(number)
                opened.append(state)
            step = next((target for target in rest.get(state, ()) if target not in number), None)
            if step is not None:
                path.append(step)
                continue
            path.pop()
            if state in closed:
                continue
            lowest[state] = min(lowest[one] for one in (state, *onward.get(state, ())) if one not in closed)
            if lowest[state] == number[state]:
                found = [opened.pop()]
                while found[-1] != state:
                    found.append(opened.pop())
                closed.update(found)
                yield found


def log_progress(graph: StateGraph, *, gamma: float, eps: float) -> tuple[Doubles, ...]:
    """``[G][K]`` ``log max(Phi(s'), eps) - log max(Phi(s), eps)`` of every turn (GraphHCA)."""
    if not 0.0 < eps <= 1.0:
        raise ArgumentError(f"the floor of Phi must lie in (0, 1], found {eps}")
    psi = {node: float(np.log(max(value, eps))) for node, value in reach_values(graph, gamma=gamma).items()}
    return tuple(
        np.array([psi[target] - psi[source] for source, target in edges_K], dtype=np.float64)
        for edges_K in graph.edges_GK
    )


def _nodes(graph: StateGraph) -> tuple[Node, ...]:
    """In order of appearance, so that nothing depends on hashing."""
    return tuple(dict.fromkeys(node for edge in graph.edges for node in edge))
