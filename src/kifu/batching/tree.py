"""Rows merged into token trees by common prefix, or laid side by side. Pure numpy.

Axes: ``T`` tokens of a row, ``M`` nodes of a tree, ``N`` occurrences.

A node stands for one token at one position under one prefix; rows that share the prefix share the node. Tokens after
the last one that predicts something are left out.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kifu.batching.contracts import Row, Tree
from kifu.errors import UsageError
from kifu.records import Ints

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a forward costs, in tokens that attend to nothing.

    A token's linear layers cost 1; each key it is compared with costs 1 / ``keys_per_token``. In a tree a node is
    compared with its path to the root and with ``block`` neighbours, in a padded row only with what comes before. A
    forward costs ``apiece`` besides, however few tokens it has: weights are read and operations started anew.
    """

    keys_per_token: float = 1200.0
    block: int = 128
    apiece: float = 200.0

    def tree(self, num_nodes: int, depths: int) -> float:
        """Cost of one tree whose nodes' depths have that sum."""
        keys = min(num_nodes * num_nodes, depths + self.block * num_nodes)
        return self.apiece + num_nodes + keys / self.keys_per_token

    def padded(self, num_rows: int, width: int) -> float:
        """Cost of a rectangle of rows."""
        return self.apiece + num_rows * (width + width**2 / (2.0 * self.keys_per_token))


def needed(row: Row) -> Ints:
    """``[T]`` the tokens of a row that must be forwarded."""
    last = int(row.positions[-1]) if row.positions.size else 0
    if row.value_positions is not None and row.value_positions.size:
        last = max(last, int(row.value_positions.max()) + 1)
    if row.observed_positions is not None and row.observed_positions.size:
        last = max(last, int(row.observed_positions.max()))
    return row.token_ids[:last]


def group_by_prefix(rows: Sequence[Row], *, max_nodes: int, cost: Cost) -> list[list[int]]:
    """Distribute rows, in order, over trees: each joins the tree before it where that is cheaper than a new one.

    Args:
        rows: in order.
        max_nodes: no tree grows beyond it; a row that does not fit begins a new one and repeats the shared prefix.
        cost: decides whether sharing pays.

    Raises:
        UsageError: one row alone has more tokens than ``max_nodes``.
    """
    groups: list[list[int]] = []
    size, depths, sorted_keys = 0, 0, list[bytes]()
    for at, row in enumerate(rows):
        ids = needed(row)
        if ids.size > max_nodes:
            raise UsageError(
                f"trajectory {row.trajectory}: {ids.size} tokens to forward, machine.max_nodes is {max_nodes}; raise it"
            )
        key = _key(ids)
        shared = _shared_with(sorted_keys, key)
        joined = size + ids.size - shared, depths + _depths(shared, ids.size)
        joins = cost.tree(*joined) - cost.tree(size, depths) <= cost.padded(1, ids.size)
        if groups and joined[0] <= max_nodes and joins:
            groups[-1].append(at)
            size, depths = joined
        else:
            groups.append([at])
            size, depths, sorted_keys = ids.size, _depths(0, ids.size), []
        insort(sorted_keys, key)
    return groups


def build_tree(rows: Sequence[Row]) -> tuple[Tree, list[Indices]]:
    """Merge rows; also return for each row the node of each of its tokens.

    Nodes are numbered depth first, so that the descendants of a node are the nodes right after it.
    """
    sequences = [needed(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda at: _key(sequences[at]))
    ids, depths, parents = list[Ints](), list[Indices](), list[Indices]()
    paths: list[Indices] = [np.zeros(0, dtype=np.int64)] * len(rows)
    count, before = 0, -1
    for at in order:
        sequence = sequences[at]
        shared = 0 if before < 0 else _common(sequences[before], sequence)
        fresh = np.arange(count, count + sequence.size - shared)
        path = np.concatenate([paths[before][:shared] if before >= 0 else fresh[:0], fresh])
        ids.append(sequence[shared:])
        depths.append(np.arange(shared, sequence.size))
        parents.append(np.concatenate([[-1], path[:-1]])[shared : path.size] if path.size else fresh)
        paths[at], before, count = path, at, count + fresh.size
    tree = Tree(
        token_ids=frozen(np.concatenate(ids)),
        depths=frozen(np.concatenate(depths)),
        parents=frozen(np.concatenate(parents)),
    )
    return tree, paths


def build_chain(row: Row) -> tuple[Tree, list[Indices]]:
    """A row that shares nothing."""
    ids = needed(row)
    nodes = np.arange(ids.size)
    return Tree(token_ids=ids, depths=frozen(nodes), parents=frozen(nodes - 1)), [nodes]


def frozen(array: npt.NDArray[np.integer]) -> Ints:
    """Copy to a read-only int32 array; -1 is fine."""
    found = array.astype(np.int32)
    found.flags.writeable = False
    return found


def _key(ids: Ints) -> bytes:
    """Bytes that sort like the sequence of ids."""
    return ids.astype(">i4").tobytes()


def _shared_with(sorted_keys: list[bytes], key: bytes) -> int:
    """Longest common prefix, in tokens, with any of the keys: one of the two neighbours has it."""
    at = bisect_left(sorted_keys, key)
    return max((_common_bytes(other, key) for other in sorted_keys[max(0, at - 1) : at + 1]), default=0)


def _depths(first: int, last: int) -> int:
    """Sum of the depths from ``first`` up to but not including ``last``."""
    return (first + last - 1) * (last - first) // 2


def _common_bytes(first: bytes, second: bytes) -> int:
    return _common(np.frombuffer(first, dtype=np.int32), np.frombuffer(second, dtype=np.int32))


def _common(first: Ints, second: Ints) -> int:
    size = min(first.size, second.size)
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if differ.size else size
