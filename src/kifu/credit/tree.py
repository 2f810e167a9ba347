"""Credit where trajectories share turns: who owns a turn, means over those who share it, values backed up a tree.

A turn's owner is the trajectory that wrote it. A branch shares the turns before its branch point with its parent; where
the parent takes no part (no reward), its turns go by the parent's name all the same.

Axes: ``G`` members of a group, ``K`` turns of one of them, ``C`` children of a node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple, TypeAlias, assert_never

import numpy as np

from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.group import SampleStd, Scale, group_relative
from kifu.errors import ArgumentError

Backup: TypeAlias = Literal["child_softmax", "child_mean", "leaf_mean"]
NodeAdvantage: TypeAlias = Literal["node_value", "diff_parent", "diff_global", "diff_localglobal", "vanilla"]
EntropyKind: TypeAlias = Literal["recorded", "sampled"]


class Node(NamedTuple):
    """One turn, by who wrote it."""

    owner: str
    turn: int


def nodes_of(group: Sequence[Episode]) -> list[tuple[Node, ...]]:
    """``[G][K]`` the node of every turn; equal nodes are one turn that several members share.

    Raises:
        ArgumentError: a branch from itself, beyond the end of its parent, or from a parent that branched from it.
    """
    known = {episode.id: episode for episode in group if episode.id}
    found: dict[int, tuple[Node, ...]] = {}
    for episode in group:
        above: dict[int, Episode] = {}
        here: Episode | None = episode
        while here is not None and id(here) not in found:
            if id(here) in above:
                raise ArgumentError(f"{episode.place()}, `branch.parent`: its branch points lead in a circle")
            above[id(here)] = here
            here = None if here.branch is None else known.get(here.branch.parent)
        for one in reversed(above.values()):
            found[id(one)] = (*_shared_nodes(one, known, found), *_own_nodes(one))
    return [found[id(episode)] for episode in group]


def _shared_nodes(
    episode: Episode, known: Mapping[str, Episode], found: Mapping[int, tuple[Node, ...]]
) -> tuple[Node, ...]:
    if episode.branch is None:
        return ()
    name, count = episode.branch.parent, min(episode.branch.turn, episode.num_turns)
    if name not in known:
        return tuple(Node(name, turn) for turn in range(count))
    nodes_K = found[id(known[name])]
    if count > len(nodes_K):
        raise ArgumentError(
            f"{episode.place()}, `branch.turn`: branches at turn {episode.branch.turn} of {name}, which has "
            f"{len(nodes_K)}"
        )
    return nodes_K[:count]


def _own_nodes(episode: Episode) -> Iterator[Node]:
    name = episode.id or f"#{id(episode)}"
    first = 0 if episode.branch is None else episode.branch.turn
    return (Node(name, turn) for turn in range(first, episode.num_turns))


def shared_means(values_G: Sequence[float], nodes_GK: Sequence[Sequence[Node]]) -> list[Doubles]:
    """``[G][K]`` for every turn the mean value of the members that share it (ARPO, hard attribution).

    A_turn = (1 / d) sum of A_i over the d leaves below the turn
    """
    below: dict[Node, list[float]] = {}
    for value, nodes_K in zip(values_G, nodes_GK, strict=True):
        for node in nodes_K:
            below.setdefault(node, []).append(value)
    means = {node: fsum(found) / len(found) for node, found in below.items()}
    return [np.array([means[node] for node in nodes_K], dtype=np.float64) for nodes_K in nodes_GK]


def within_trees(returns_G: Sequence[float], trees_G: Sequence[str], *, scale: Scale | None = None) -> list[float]:
    """``[G]`` return relative to the members of the same tree; 0 where they are all equal (Tree-GRPO)."""
    members: dict[str, list[int]] = {}
    for at, tree in enumerate(trees_G):
        members.setdefault(tree, []).append(at)
    found = [0.0] * len(returns_G)
    for places in members.values():
        relative = group_relative([returns_G[at] for at in places], scale=scale or SampleStd())
        for at, value in zip(places, relative, strict=True):
            found[at] = float(value or 0.0)
    return found


def turn_entropies(episode: Episode, *, kind: EntropyKind) -> tuple[float, ...]:
    """``[K]`` nats of every turn.

    Args:
        episode: with facts of its turns.
        kind: ``sampled`` is the mean of ``-log pi`` over the sampled tokens; ``recorded`` the mean entropy of the
            distributions they were sampled from, and the former where nobody recorded that.

    Raises:
        ArgumentError: a turn has neither.
    """
    found = []
    for at, turn in enumerate(episode.facts("num_tokens")):
        if kind == "recorded" and turn.entropy is not None:
            found.append(float(turn.entropy))
        elif turn.logprobs_N is not None:
            found.append(float(-turn.logprobs_N.mean()) if turn.logprobs_N.size else 0.0)
        elif not turn.num_tokens:
            found.append(0.0)
        else:
            raise episode.lacking("logprobs_N", *(["entropy"] if kind == "recorded" else []), turn=at)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeValues:
    """Values of a group's turns as the nodes of one tree."""

    values: Mapping[Node, float]
    parents: Mapping[Node, Node | None]
    """None below the root."""
    root: float

    def advantage(self, node: Node, mode: NodeAdvantage, *, leaf: float) -> float:
        """What the tokens of a turn get; ``leaf`` is the value of the trajectory it stands in."""
        value, parent = self.values[node], self.parents[node]
        above = self.root if parent is None else self.values[parent]
        match mode:
            case "node_value":
                return value
            case "diff_parent":
                return value - above
            case "diff_global":
                return value - self.root
            case "diff_localglobal":
                return (value - self.root) + (value - above)
            case "vanilla":
                return leaf
            case _ as unreachable:
                assert_never(unreachable)


def backed_up(
    leaves_G: Sequence[float],
    nodes_GK: Sequence[Sequence[Node]],
    entropies_GK: Sequence[Sequence[float]],
    *,
    mode: Backup = "child_softmax",
) -> TreeValues:
    """Values of the turns of one tree, from its leaves up (AT2PO).

        child_softmax   V(n) = sum_c softmax_c(H(c)) V(c)
        child_mean      V(n) = mean_c V(c)
        leaf_mean       V(n) = mean over the leaves below n

    Args:
        leaves_G: value of every member, at its last turn.
        nodes_GK: see `nodes_of`; no member is without turns.
        entropies_GK: nats, of every turn.
        mode: how children become their parent's value.
    """
    parents: dict[Node, Node | None] = {}
    entropies: dict[Node, float] = {}
    ends: dict[Node, list[float]] = {}
    below: dict[Node | None, list[float]] = {}
    for value, nodes_K, entropies_K in zip(leaves_G, nodes_GK, entropies_GK, strict=True):
        for at, (node, entropy) in enumerate(zip(nodes_K, entropies_K, strict=True)):
            parents.setdefault(node, nodes_K[at - 1] if at else None)
            entropies.setdefault(node, entropy)
            below.setdefault(node, []).append(value)
        below.setdefault(None, []).append(value)
        ends.setdefault(nodes_K[-1], []).append(value)
    values: dict[Node, float] = {}
    children: dict[Node | None, list[tuple[float, float]]] = {}
    for node in sorted(parents, key=lambda item: -item.turn):  # a child stands one turn after its parent
        own = children.get(node, []) + [(entropies[node], value) for value in ends.get(node, ())]
        values[node] = _combined(own, below[node], mode)
        children.setdefault(parents[node], []).append((entropies[node], values[node]))
    return TreeValues(values=values, parents=parents, root=_combined(children[None], below[None], mode))


def _combined(children_C: Sequence[tuple[float, float]], leaves: Sequence[float], mode: Backup) -> float:
    """A node's value from (entropy, value) of its children; an end of a trajectory counts as a child."""
    values_C = [value for _, value in children_C]
    match mode:
        case "child_softmax":
            weights_C = _softmax([entropy for entropy, _ in children_C])
            return fsum(weight * value for weight, value in zip(weights_C, values_C, strict=True))
        case "child_mean":
            return fsum(values_C) / len(values_C)
        case "leaf_mean":
            return fsum(leaves) / len(leaves)
        case _ as unreachable:
            assert_never(unreachable)


def _softmax(entropies_C: Sequence[float]) -> list[float]:
    shifted_C = np.exp(np.asarray(entropies_C, dtype=np.float64) - max(entropies_C))
    found: list[float] = (shifted_C / shifted_C.sum()).tolist()
    return found
