"""Merging rows by prefix: against a trie of dictionaries."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.batching import Cost, Row
from kifu.batching.tree import build_tree, group_by_prefix
from kifu.errors import UsageError

MakeRow = Callable[..., Row]
FREE = Cost(keys_per_token=float("inf"))
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=9)


def num_prefixes(sequences: list[list[int]]) -> int:
    """Distinct non-empty prefixes: the nodes of a trie."""
    return len({tuple(sequence[:size]) for sequence in sequences for size in range(1, len(sequence) + 1)})


@given(sequences=SEQUENCES)
@settings(max_examples=150, deadline=None)
def test_a_node_is_a_token_under_a_prefix(make_row: MakeRow, sequences: list[list[int]]) -> None:
    """Walking up from each row's last node spells the row; the number of nodes is the number of prefixes."""
    rows = [make_row(sequence, [len(sequence) - 1]) for sequence in sequences]
    forwarded = [sequence[:-1] for sequence in sequences]

    tree, paths = build_tree(rows)

    assert tree.token_ids.size == num_prefixes(forwarded)
    for sequence, path in zip(forwarded, paths, strict=True):
        assert tree.token_ids[path].tolist() == sequence
        assert tree.depths[path].tolist() == list(range(len(sequence)))
        assert tree.parents[path].tolist() == [-1, *path[:-1].tolist()]
    assert all(parent < node for node, parent in enumerate(tree.parents.tolist()))


@given(sequences=SEQUENCES)
@settings(max_examples=80, deadline=None)
def test_descendants_follow_their_node(make_row: MakeRow, sequences: list[list[int]]) -> None:
    """Nodes are numbered depth first: the subtree of a node is an interval."""
    tree, _ = build_tree([make_row(sequence, [len(sequence) - 1]) for sequence in sequences])
    parents = tree.parents.tolist()

    for node in range(len(parents)):
        inside = {node}
        for other in range(node + 1, len(parents)):
            if parents[other] in inside:
                inside.add(other)
        assert inside == set(range(node, node + len(inside)))


@given(sequences=SEQUENCES, max_nodes=st.integers(8, 20))
@settings(max_examples=100, deadline=None)
def test_no_tree_exceeds_the_limit_and_order_is_kept(
    make_row: MakeRow, sequences: list[list[int]], max_nodes: int
) -> None:
    """The cut repeats the shared prefix; rows stay in order and none is lost."""
    rows = [make_row(sequence, [len(sequence) - 1]) for sequence in sequences]

    groups = group_by_prefix(rows, max_nodes=max_nodes, cost=FREE)

    assert [at for group in groups for at in group] == list(range(len(rows)))
    for group in groups:
        assert num_prefixes([sequences[at][:-1] for at in group]) <= max_nodes


def test_strangers_stay_apart_where_comparing_neighbours_costs_more_than_another_forward(make_row: MakeRow) -> None:
    """By hand: joining adds 20 nodes, 190 + 20 * 8 keys; a forward of its own costs its 20 tokens and 200 keys."""
    rows = [make_row([start, *range(10, 30)], [20]) for start in (1, 1, 2, 2)]
    joining = 20 + (190 + 20 * 8) / 10.0
    apart = 20 + 20**2 / (2 * 10.0)
    between = joining - apart
    assert between == 15.0

    cheap, dear = (Cost(keys_per_token=10.0, block=8, apiece=between + step) for step in (-1.0, 1.0))

    assert group_by_prefix(rows, max_nodes=100, cost=cheap) == [[0, 1], [2, 3]]
    assert group_by_prefix(rows, max_nodes=100, cost=dear) == [[0, 1, 2, 3]]
    assert group_by_prefix(rows, max_nodes=100, cost=FREE) == [[0, 1, 2, 3]]


def test_a_tree_costs_its_paths_and_neighbours_and_never_more_than_all_pairs() -> None:
    """By hand: nodes at depths 0 to 3 and neighbours of 2; with many neighbours every pair of four nodes."""
    assert Cost(keys_per_token=2.0, block=2, apiece=5.0).tree(4, 0 + 1 + 2 + 3) == 5.0 + 4 + (6 + 2 * 4) / 2
    assert Cost(keys_per_token=2.0, block=9, apiece=5.0).tree(4, 6) == 5.0 + 4 + 16 / 2
    assert Cost(keys_per_token=2.0, apiece=5.0).padded(3, 4) == 5.0 + 3 * (4 + 16 / 4)


def test_a_row_longer_than_the_limit_is_named(make_row: MakeRow) -> None:
    """A sequence cannot be cut."""
    with pytest.raises(UsageError, match=r"trajectory long: 11 tokens .*max_nodes is 10"):
        group_by_prefix([make_row(range(12), [11], "long")], max_nodes=10, cost=FREE)


def test_thousands_of_tokens_take_milliseconds(make_row: MakeRow, benchmark_seconds: Callable[..., float]) -> None:
    """96 rows of 250 tokens; a generous limit that quadratic Python would miss by far."""
    random = np.random.default_rng(0)
    prompt = random.integers(0, 40_000, 170).tolist()
    rows = [make_row([*prompt, *random.integers(0, 40_000, 80).tolist()], [200, 249]) for _ in range(96)]

    assert benchmark_seconds(lambda: [build_tree(rows), group_by_prefix(rows, max_nodes=2048, cost=FREE)]) < 0.5
