"""Micro-batches: every trained token once, predicted by the token before it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.batching import Cost, Layout, PackedBatch, Row, pack_rows, report
from kifu.errors import UsageError
from kifu.records import Support, as_floats, as_ints

MakeRow = Callable[..., Row]
FREE = Cost(keys_per_token=float("inf"))


def spell(batch: PackedBatch, node: int) -> list[int]:
    """Tokens from the root to a node of the batch's concatenated trees."""
    for tree in batch.trees:
        if node < tree.token_ids.size:
            found = []
            while node >= 0:
                found.append(int(tree.token_ids[node]))
                node = int(tree.parents[node])
            return found[::-1]
        node -= tree.token_ids.size
    raise AssertionError("outside the batch")


@st.composite
def rows_of(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Sequences over few ids, so that prefixes are shared, with trained positions."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=10))
        positions = draw(st.sets(st.integers(1, len(ids) - 1), min_size=1))
        found.append((ids, sorted(positions)))
    return found


@pytest.mark.parametrize("layout", ["tree", "rows"])
@given(plain=rows_of(), max_nodes=st.integers(10, 40))
@settings(max_examples=80, deadline=None)
def test_every_trained_token_occurs_once_after_its_own_prefix(
    make_row: MakeRow, layout: Layout, plain: list[tuple[list[int], list[int]]], max_nodes: int
) -> None:
    """Spelling each occurrence's prefix from the tree gives back every row, in order."""
    rows = [make_row(ids, positions, f"r{number}", 3) for number, (ids, positions) in enumerate(plain)]

    batches = pack_rows(rows, max_nodes=max_nodes, layout=layout, cost=FREE)

    found = []
    for batch in batches:
        occurrences = batch.occurrences
        assert sum(tree.token_ids.size for tree in batch.trees) <= max_nodes
        assert sorted(set(occurrences.sequences.tolist())) == list(range(len(batch.trajectories)))
        for at in range(len(occurrences)):
            prefix = spell(batch, int(occurrences.nodes[at]))
            name = batch.trajectories[occurrences.sequences[at]]
            found.append((name, len(prefix), [*prefix, int(occurrences.token_ids[at])]))
            assert occurrences.advantages[at] == len(prefix)
            assert occurrences.behaviour_logprobs[at] == np.float32(-0.01 * len(prefix))
    wanted = [
        (f"r{number}", position, ids[: position + 1])
        for number, (ids, positions) in enumerate(plain)
        for position in positions
    ]
    assert found == wanted


def test_turns_are_numbered_through_the_batch(make_row: MakeRow) -> None:
    """Turn 0 of one trajectory is not turn 0 of another."""
    rows = [make_row([1, 2, 3, 4, 5], [1, 3, 4], "a", 3), make_row([1, 2, 3, 4, 5], [2, 3], "b", 3)]

    occurrences = pack_rows(rows, max_nodes=50)[0].occurrences

    assert occurrences.turns.tolist() == [0, 1, 1, 2, 3]
    assert occurrences.sequences.tolist() == [0, 0, 0, 1, 1]


def test_two_tapes_of_one_trajectory_are_one_sequence(make_row: MakeRow) -> None:
    """A compacted tape belongs to the same trajectory, so sequence-level ratios see both."""
    rows = [make_row([1, 2, 3], [1, 2], "a"), make_row([7, 8, 9], [2], "a")]

    batch = pack_rows(rows, max_nodes=50)[0]

    assert batch.occurrences.sequences.tolist() == [0, 0, 0]
    assert batch.trajectories == ("a",)


def test_values_point_at_the_node_before_the_turn(make_row: MakeRow) -> None:
    """The state after position 2 of the second row is a node of the shared tree."""
    rows = [
        replace(
            make_row(ids, [3], name),
            value_positions=as_ints([2]),
            value_targets=np.array([target]),
            old_values=np.array([0.1]),
            value_weights=np.array([1.0]),
        )
        for name, ids, target in (("a", [1, 2, 3, 4], 0.3), ("b", [1, 2, 9, 4], 0.7))
    ]

    batch = pack_rows(rows, max_nodes=50, cost=FREE)[0]

    assert batch.values is not None
    assert [spell(batch, int(node)) for node in batch.values.nodes] == [[1, 2, 3], [1, 2, 9]]
    assert batch.values.targets.tolist() == [0.3, 0.7]


def test_supports_and_references_stay_with_their_token(make_row: MakeRow) -> None:
    """Field by field, in the order of the rows."""
    one, two = Support.of([2, 5]), Support.of([9, 3])
    rows = [
        replace(make_row([1, 2, 3], [1, 2], "a"), supports=(one, None), reference_logprobs=as_floats([-1, -2])),
        replace(make_row([1, 9, 3], [1], "b"), supports=(two,), reference_logprobs=as_floats([-3])),
    ]

    occurrences = pack_rows(rows, max_nodes=50)[0].occurrences

    assert occurrences.supports == (one, None, two)
    assert occurrences.reference_logprobs is not None
    assert occurrences.reference_logprobs.tolist() == [-1, -2, -3]


def test_references_for_some_rows_only_are_refused(make_row: MakeRow) -> None:
    """Absent is not zero."""
    rows = [replace(make_row([1, 2], [1]), reference_logprobs=as_floats([-1])), make_row([1, 2], [1])]

    with pytest.raises(UsageError, match="for all or for none"):
        pack_rows(rows, max_nodes=50)


def test_padded_rows_are_chosen_where_nothing_is_shared(make_row: MakeRow) -> None:
    """Eight strangers of equal length: a tree saves nothing and compares them with one another."""
    random = np.random.default_rng(0)
    strangers = [make_row(random.integers(0, 900, 60), [59], str(number)) for number in range(8)]
    relatives = [make_row([*range(50), 100 + number, 7], [51], str(number)) for number in range(8)]

    assert report(strangers, pack_rows(strangers, max_nodes=1000)).layout == "rows"
    found = report(relatives, pack_rows(relatives, max_nodes=1000))
    assert found.layout == "tree"
    assert found.forwarded == 50 + 8
    assert found.row_tokens == 8 * 52


def test_rows_layout_never_merges(make_row: MakeRow) -> None:
    """For models that know only sequences."""
    rows = [make_row([1, 2, 3, 4], [3], str(number)) for number in range(3)]

    batch = pack_rows(rows, max_nodes=50, layout="rows")[0]

    assert [tree.parents.tolist() for tree in batch.trees] == [[-1, 0, 1]] * 3


def test_rows_without_anything_to_train_are_left_out(make_row: MakeRow) -> None:
    """And no row at all gives no batch."""
    assert pack_rows([make_row([1, 2, 3], [])], max_nodes=50) == []
    assert pack_rows([], max_nodes=50) == []


def paired(make_row: MakeRow, pairs: list[int]) -> list[Row]:
    """Rows of 6 tokens, the number of each row's pair given; sides of a pair share four tokens."""
    return [
        replace(make_row([1, 2, 3, pair % 3, 10 + at, 0], [4, 5], f"r{at}"), pair=pair) for at, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize("layout", ["tree", "rows"])
@given(order=st.permutations([0, 0, 1, 1, 2, 2, 3, 3]), max_nodes=st.integers(12, 60))
@settings(max_examples=40, deadline=None)
def test_both_sides_of_a_pair_stand_in_one_micro_batch(
    make_row: MakeRow, layout: Layout, order: list[int], max_nodes: int
) -> None:
    rows = paired(make_row, order)

    batches = pack_rows(rows, max_nodes=max_nodes, layout=layout, cost=FREE)

    seen = []
    for batch in batches:
        assert sum(tree.token_ids.size for tree in batch.trees) <= max_nodes
        names = [order[int(name[1:])] for name in batch.trajectories]
        assert sorted(names) == sorted(2 * sorted(set(names)))
        seen += names
        pairs = batch.occurrences.pairs
        assert pairs is not None
        owners = [order[int(batch.occurrences.token_ids[at]) - 10] for at in range(0, len(batch.occurrences), 2)]
        assert [int(value) for value in pairs[::2]] == [list(dict.fromkeys(owners)).index(owner) for owner in owners]
        assert pairs[::2].tolist() == pairs[1::2].tolist()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_pair_that_does_not_fit_and_a_pair_among_single_rows_are_refused(make_row: MakeRow) -> None:
    rows = paired(make_row, [0, 0])
    with pytest.raises(UsageError, match=r"r0 and 1 rows of its pair: 10 tokens to forward, machine.max_nodes is 9"):
        pack_rows(rows, max_nodes=9)
    with pytest.raises(UsageError, match="some rows stand in a pair and some in none"):
        pack_rows([*rows, make_row([1, 2], [1])], max_nodes=64)


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_observed_tokens_are_predicted_by_the_token_before_them(make_row: MakeRow, layout: Layout) -> None:
    rows = [
        replace(
            make_row([1, 2, 3, 4, 5, 6], [1, 2], name), observed_positions=as_ints([3, 5]), observed_weights=weights
        )
        for name, weights in (("a", np.array([0.25, 0.5])), ("b", np.array([0.125, 0.125])))
    ]

    [batch] = pack_rows([*rows, make_row([1, 7, 8], [1, 2], "c")], max_nodes=64, layout=layout, cost=FREE)

    seen = batch.observations
    assert seen is not None
    assert seen.token_ids.tolist() == [4, 6, 4, 6]
    assert [spell(batch, int(node)) for node in seen.nodes] == [[1, 2, 3], [1, 2, 3, 4, 5]] * 2
    assert seen.weights.tolist() == [0.25, 0.5, 0.125, 0.125]
    assert len(batch.occurrences) == 6
