"""Credit over shared turns, against the printed trees and against plain recursion."""

import numpy as np
import pytest

from kifu.credit import BranchPoint, Episode, PopulationStd, SampleStd, TurnFacts, group_relative
from kifu.credit.tree import (
    Backup,
    Node,
    NodeAdvantage,
    backed_up,
    nodes_of,
    shared_means,
    turn_entropies,
    within_trees,
)
from kifu.errors import ArgumentError


def member(name: str, turns: int, parent: str | None = None, at: int = 0) -> Episode:
    branch = None if parent is None else BranchPoint(parent=parent, turn=at)
    return Episode(rewards_K=np.zeros(turns), terminated=True, id=name, branch=branch)


def test_turns_before_a_branch_point_are_the_parents() -> None:
    """Member c leaves b at turn 2, b left a at turn 1: turn 0 is a's in all of them, turn 1 is b's in two."""
    found = nodes_of([member("a", 2), member("b", 3, "a", 1), member("c", 4, "b", 2), member("d", 1)])

    assert [tuple(node) for node in found[2]] == [("a", 0), ("b", 1), ("c", 2), ("c", 3)]
    assert found[1][:1] == found[0][:1]
    assert len({node for nodes in found for node in nodes}) == 2 + 2 + 2 + 1


def test_children_of_a_parent_that_takes_no_part_share_its_turns() -> None:
    b, c = nodes_of([member("b", 2, "gone", 1), member("c", 3, "gone", 1)])
    assert b[0] == c[0] == Node("gone", 0)
    assert b[1] != c[1]


def test_a_long_chain_of_branches_is_walked_once() -> None:
    """Each of 2000 members leaves the one before at its last turn; where every turn is followed up, hours."""
    group = [member("0", 40), *(member(str(at), 40, str(at - 1), 39) for at in range(1, 2_000))]
    found = nodes_of(group[::-1])
    assert found[0] == (*(Node("0", turn) for turn in range(39)), Node("1999", 39))


def test_branch_points_that_lead_nowhere_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"b, `branch.turn`: branches at turn 3 of a, which has 2"):
        nodes_of([member("a", 2), member("b", 4, "a", 3)])
    with pytest.raises(ArgumentError, match="in a circle"):
        nodes_of([member("a", 2, "b", 2), member("b", 2, "a", 2)])


def test_shared_segments_get_the_mean_of_their_leaves_as_printed() -> None:
    """Rewards 1, 1, 0, 0; the members that share a first turn with member 0 are the set on the left."""
    advantages = [float(value or 0.0) for value in group_relative([1, 1, 0, 0], scale=SampleStd(eps=1e-6))]
    np.testing.assert_allclose(advantages, [0.866024, 0.866024, -0.866024, -0.866024], atol=5e-7)
    for leaves, printed in (((0, 1), 0.866024), ((0, 2), 0.0), ((0, 2, 3), -0.288675)):
        group = [member(str(at), 2, "0" if at in leaves[1:] else None, 1) for at in range(4)]
        shared = shared_means(advantages, nodes_of(group))
        for at in leaves:
            assert shared[at][0] == pytest.approx(printed, abs=5e-7)
            assert shared[at][1] == pytest.approx(advantages[at])


Printed = tuple[list[float], list[tuple[Node, ...]], list[tuple[float, ...]]]


@pytest.fixture
def printed_tree() -> Printed:
    """Root to a (leaves 0 and 1) and to b, which is leaf 2; rewards 1, 0, 0."""
    group = [member("0", 2), member("1", 2, "0", 1), member("2", 1)]
    leaves = [float(value or 0.0) for value in group_relative([1, 0, 0], scale=PopulationStd(eps=1e-6))]
    return leaves, nodes_of(group), [(0.4, 0.2), (0.4, 0.6), (0.9,)]


def test_values_are_backed_up_as_printed(printed_tree: Printed) -> None:
    leaves, nodes, entropies = printed_tree
    np.testing.assert_allclose(leaves, [1.414211, -0.707105, -0.707105], atol=1e-6)

    tree = backed_up(leaves, nodes, entropies)

    assert tree.values[nodes[0][0]] == pytest.approx(0.144205, abs=1e-6)
    assert tree.values[nodes[2][0]] == pytest.approx(-0.707105, abs=1e-6)
    assert tree.root == pytest.approx(-0.385701, abs=1e-6)


def test_children_weigh_as_printed(printed_tree: Printed) -> None:
    """A value of 1 on one side alone shows the weight of that side."""
    _, nodes, entropies = printed_tree
    first, left = backed_up([1.0, 0.0, 0.0], nodes, entropies), backed_up([1.0, 1.0, 0.0], nodes, entropies)
    second, right = backed_up([0.0, 1.0, 0.0], nodes, entropies), backed_up([0.0, 0.0, 1.0], nodes, entropies)

    assert [tree.values[nodes[0][0]] for tree in (first, second)] == pytest.approx([0.401312, 0.598688], abs=1e-6)
    assert [left.root, right.root] == pytest.approx([0.377541, 0.622459], abs=1e-6)


@pytest.mark.parametrize("mode", ["child_mean", "leaf_mean"])
def test_means_are_backed_up_as_printed(printed_tree: Printed, mode: Backup) -> None:
    leaves, nodes, entropies = printed_tree

    tree = backed_up(leaves, nodes, entropies, mode=mode)

    assert tree.values[nodes[0][0]] == pytest.approx(0.353553, abs=1e-6)
    assert tree.root == pytest.approx(-0.176776 if mode == "child_mean" else 0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "printed"),
    [
        ("node_value", 1.414211),
        ("diff_parent", 1.270006),
        ("diff_global", 1.799912),
        ("diff_localglobal", 3.069917),
        ("vanilla", 1.414211),
    ],
)
def test_advantages_of_a_node_are_as_printed(printed_tree: Printed, mode: NodeAdvantage, printed: float) -> None:
    leaves, nodes, entropies = printed_tree
    tree = backed_up(leaves, nodes, entropies)
    assert tree.advantage(nodes[0][1], mode, leaf=leaves[0]) == pytest.approx(printed, abs=2e-6)


def test_a_ragged_tree_is_backed_up_as_by_recursion() -> None:
    """A branch of a branch, a chain apart, and a branch at the first turn; the oracle walks prefixes from the root."""
    group = [member("a", 3), member("b", 4, "a", 1), member("c", 4, "b", 2), member("d", 2), member("e", 1, "a", 0)]
    leaves = [0.3, -1.0, 2.0, 0.5, -0.25]
    random = np.random.Generator(np.random.PCG64(3))
    known: dict[Node, float] = {}
    nodes = nodes_of(group)
    entropies = [tuple(known.setdefault(node, float(random.uniform(0, 2))) for node in own) for own in nodes]

    def value(prefix: tuple[Node, ...]) -> float:
        below = [at for at in range(5) if nodes[at][: len(prefix)] == prefix]
        if len(below) == 1 and nodes[below[0]] == prefix:
            return leaves[below[0]]
        children = list(dict.fromkeys(nodes[at][: len(prefix) + 1] for at in below))
        weights = [np.exp(known[child[-1]]) for child in children]
        return float(sum(w * value(child) for w, child in zip(weights, children, strict=True)) / sum(weights))

    tree = backed_up(leaves, nodes, entropies)

    assert tree.root == pytest.approx(value(()))
    for own in nodes:
        for turn in range(len(own)):
            assert tree.values[own[turn]] == pytest.approx(value(own[: turn + 1]))


def test_a_trajectory_that_ends_where_others_go_on_counts_as_a_child() -> None:
    """Both end below turn 0: one goes on by a turn, the other stops there."""
    nodes = [(Node("a", 0), Node("a", 1)), (Node("a", 0),)]
    tree = backed_up([1.0, 0.0], nodes, [(0.7, 0.7), (0.7,)])
    assert tree.values[Node("a", 0)] == pytest.approx(0.5)


def test_returns_within_trees_are_as_printed() -> None:
    found = within_trees([1.0, 0.0, 0.0, 0.0], ["A", "A", "B", "B"])
    np.testing.assert_allclose(found, [0.707106, -0.707106, 0.0, 0.0], atol=1e-6)
    assert within_trees([3.0], ["A"]) == [0.0]


def test_entropies_of_turns_are_those_recorded_or_those_of_the_sampled_tokens() -> None:
    episode = Episode(
        rewards_K=np.zeros(3),
        terminated=True,
        id="a",
        turns=(
            TurnFacts(num_tokens=2, entropy=0.25, logprobs_N=np.array([-1.0, -2.0])),
            TurnFacts(num_tokens=1, logprobs_N=np.array([-0.5])),
            TurnFacts(num_tokens=0),
        ),
    )
    assert turn_entropies(episode, kind="recorded") == (0.25, 0.5, 0.0)
    assert turn_entropies(episode, kind="sampled") == (1.5, 0.5, 0.0)
    blind = Episode(rewards_K=np.zeros(1), terminated=True, id="b", turns=(TurnFacts(num_tokens=2),))
    with pytest.raises(ArgumentError, match="b, turn 0: the method needs `behaviour_logprob` or `entropy`"):
        turn_entropies(blind, kind="recorded")
