"""Micro-batches: rows in order, cut so that one forward stays within a number of nodes.

Axes: ``N`` occurrences, ``K`` values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from kifu.batching.contracts import Observations, Occurrences, PackedBatch, Row, Tree, ValueTargets
from kifu.batching.tree import Cost, Indices, build_chain, build_tree, frozen, group_by_prefix, needed
from kifu.errors import UsageError
from kifu.records import Support, as_floats

Layout: TypeAlias = Literal["tree", "rows"]
"""Trees wherever sharing prefixes is cheaper, or rows side by side always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingReport:
    """What packing did, for people."""

    layout: Layout
    row_tokens: int
    """Tokens of the rows as they are, each forwarded in full."""
    forwarded: int
    """Nodes or padded tokens that go through the model."""
    micro_batches: int


def pack_rows(
    rows: Sequence[Row], *, max_nodes: int, layout: Layout = "tree", cost: Cost | None = None
) -> list[PackedBatch]:
    """Pack rows into micro-batches, in order.

    A row is never split, so every micro-batch holds whole turns and sequences, and both sides of a pair stand in one.
    Rows without a trained token and without a value are left out.

    Args:
        rows: in (group, member) order; rows of a pair move to the first of them.
        max_nodes: largest number of nodes, or of padded tokens, of one micro-batch.
        layout: "tree" merges common prefixes where that is cheaper than padded rows; "rows" never merges.
        cost: decides what is cheaper; by default that of a small model on a CPU.

    Raises:
        UsageError: ``max_nodes`` is below 1 or below the length of one row or pair.
    """
    if max_nodes < 1:
        raise UsageError(f"max_nodes must be at least 1, found {max_nodes}")
    price = cost or Cost()
    kept = [row for row in rows if needed(row).size]
    if not kept:
        return []
    bundles = _bundles(kept)
    rectangles = _rectangles(kept, bundles, max_nodes=max_nodes)
    trees = _trees(kept, bundles, max_nodes=max_nodes, cost=price)
    if layout == "rows" or not _trees_are_cheaper(kept, trees, rectangles=rectangles, cost=price):
        return [_batch(kept, [[at] for at in members]) for members in rectangles]
    return [_batch(kept, groups) for groups in _fill(kept, trees, max_nodes=max_nodes)]


def _bundles(rows: Sequence[Row]) -> list[list[int]]:
    """Rows that must stand in one micro-batch: those of a pair, and every other row alone."""
    found: list[list[int]] = []
    by_pair: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if row.pair is None:
            found.append([at])
        elif row.pair in by_pair:
            by_pair[row.pair].append(at)
        else:
            by_pair[row.pair] = [at]
            found.append(by_pair[row.pair])
    return found


def _trees(rows: Sequence[Row], bundles: Sequence[list[int]], *, max_nodes: int, cost: Cost) -> list[list[list[int]]]:
    """Trees that must stand in one micro-batch; a pair shares its prefix with nobody else."""
    if all(len(bundle) == 1 for bundle in bundles):
        return [[members] for members in group_by_prefix(rows, max_nodes=max_nodes, cost=cost)]
    found = []
    for bundle in bundles:
        groups = group_by_prefix([rows[at] for at in bundle], max_nodes=max_nodes, cost=cost)
        found.append([[bundle[at] for at in members] for members in groups])
    return found


def report(rows: Sequence[Row], batches: Sequence[PackedBatch]) -> PackingReport:
    """Count what a packing forwards."""
    forwarded, num_trees = 0, 0
    for batch in batches:
        sizes = [int(tree.token_ids.size) for tree in batch.trees]
        chains = all(_is_chain(tree) for tree in batch.trees)
        forwarded += len(sizes) * max(sizes, default=0) if chains else sum(sizes)
        num_trees += len(sizes)
    return PackingReport(
        layout="tree" if num_trees < sum(needed(row).size > 0 for row in rows) else "rows",
        row_tokens=sum(int(row.token_ids.size) for row in rows),
        forwarded=forwarded,
        micro_batches=len(batches),
    )


def _is_chain(tree: Tree) -> bool:
    return bool((tree.parents == np.arange(-1, tree.parents.size - 1)).all())


def _trees_are_cheaper(
    rows: Sequence[Row], trees: list[list[list[int]]], *, rectangles: list[list[int]], cost: Cost
) -> bool:
    as_trees = sum(_cost(rows, members, cost=cost) for bundle in trees for members in bundle)
    as_rows = sum(cost.padded(len(members), max(needed(rows[at]).size for at in members)) for members in rectangles)
    return as_trees < as_rows


def _cost(rows: Sequence[Row], members: Sequence[int], *, cost: Cost) -> float:
    if len(members) == 1:
        return cost.padded(1, needed(rows[members[0]]).size)
    tree, _ = build_tree([rows[at] for at in members])
    return cost.tree(tree.token_ids.size, int(tree.depths.sum()))


def _num_nodes(rows: Sequence[Row], members: Sequence[int]) -> int:
    return int(build_tree([rows[at] for at in members])[0].token_ids.size)


def _fill(rows: Sequence[Row], trees: list[list[list[int]]], *, max_nodes: int) -> list[list[list[int]]]:
    """Put consecutive trees into one micro-batch while they fit; trees of one bundle always."""
    batches: list[list[list[int]]] = []
    total = 0
    for bundle in trees:
        size = sum(_num_nodes(rows, members) for members in bundle)
        if batches and total + size <= max_nodes:
            batches[-1].extend(bundle)
            total += size
        else:
            batches.append(list(bundle))
            total = size
    return batches


def _rectangles(rows: Sequence[Row], bundles: Sequence[list[int]], *, max_nodes: int) -> list[list[int]]:
    """Consecutive bundles whose padded rectangle fits."""
    found: list[list[int]] = []
    width = 0
    for bundle in bundles:
        size = max(int(needed(rows[at]).size) for at in bundle)
        if len(bundle) * size > max_nodes:
            name = rows[bundle[0]].trajectory
            both = f" and {len(bundle) - 1} rows of its pair" if len(bundle) > 1 else ""
            raise UsageError(
                f"trajectory {name}{both}: {len(bundle) * size} tokens to forward, machine.max_nodes is {max_nodes}; "
                "raise it"
            )
        if found and (len(found[-1]) + len(bundle)) * max(width, size) <= max_nodes:
            found[-1].extend(bundle)
            width = max(width, size)
        else:
            found.append(list(bundle))
            width = size
    return found


def _batch(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> PackedBatch:
    trees: list[Tree] = []
    members: list[Row] = []
    nodes: list[Indices] = []
    total = 0
    for group in groups:
        chosen = [rows[at] for at in group]
        tree, paths = build_chain(chosen[0]) if len(chosen) == 1 else build_tree(chosen)
        trees.append(tree)
        members.extend(chosen)
        nodes.extend(path + total for path in paths)
        total += int(tree.token_ids.size)
    return PackedBatch(
        trees=tuple(trees),
        occurrences=_occurrences(members, nodes),
        values=_values(members, nodes),
        observations=_observations(members, nodes),
        trajectories=tuple(dict.fromkeys(row.trajectory for row in members)),
    )


def _occurrences(rows: Sequence[Row], nodes: Sequence[Indices]) -> Occurrences:
    turns, sequences, num_turns, names = [], [], 0, dict[str, int]()
    for row in rows:
        found, numbers = np.unique(row.turns, return_inverse=True)
        turns.append(numbers + num_turns)
        num_turns += found.size
        sequences.append(np.full(row.positions.size, names.setdefault(row.trajectory, len(names))))
    with_reference = [row for row in rows if row.reference_logprobs is not None]
    if with_reference and len(with_reference) != len(rows):
        raise UsageError("some rows have reference logprobs and some have none; compute them for all or for none")
    supports: tuple[Support | None, ...] = tuple(support for row in rows for support in row.supports)
    references = [row.reference_logprobs for row in rows if row.reference_logprobs is not None]
    of_pair = {pair: at for at, pair in enumerate(dict.fromkeys(row.pair for row in rows))}
    pairs = [np.full(row.positions.size, of_pair[row.pair]) for row in rows]
    if None in of_pair and len(of_pair) > 1:
        raise UsageError("some rows stand in a pair and some in none; an update holds pairs alone or none")
    return Occurrences(
        nodes=frozen(np.concatenate([path[row.positions - 1] for row, path in zip(rows, nodes, strict=True)])),
        token_ids=frozen(np.concatenate([row.token_ids[row.positions] for row in rows])),
        behaviour_logprobs=as_floats(np.concatenate([row.behaviour_logprobs for row in rows])),
        temperatures=as_floats(np.concatenate([row.temperatures for row in rows])),
        supports=supports,
        advantages=np.concatenate([row.advantages for row in rows]),
        weights=np.concatenate([row.weights for row in rows]),
        turns=frozen(np.concatenate(turns)),
        sequences=frozen(np.concatenate(sequences)),
        reference_logprobs=as_floats(np.concatenate(references)) if references else None,
        pairs=None if None in of_pair else frozen(np.concatenate(pairs)),
    )


def _values(rows: Sequence[Row], nodes: Sequence[Indices]) -> ValueTargets | None:
    found = []
    for row, path in zip(rows, nodes, strict=True):
        if row.value_positions is None or not row.value_positions.size:
            continue
        if row.value_targets is None or row.old_values is None or row.value_weights is None:
            raise UsageError(f"trajectory {row.trajectory}: value positions without targets, old values or weights")
        found.append((path[row.value_positions], row.value_targets, row.old_values, row.value_weights))
    if not found:
        return None
    return ValueTargets(
        nodes=frozen(np.concatenate([part[0] for part in found])),
        targets=np.concatenate([part[1] for part in found]),
        old_values=np.concatenate([part[2] for part in found]),
        weights=np.concatenate([part[3] for part in found]),
    )


def _observations(rows: Sequence[Row], nodes: Sequence[Indices]) -> Observations | None:
    found = []
    for row, path in zip(rows, nodes, strict=True):
        if row.observed_positions is None or not row.observed_positions.size:
            continue
        if row.observed_weights is None:
            raise UsageError(f"trajectory {row.trajectory}: observed positions without weights")
        found.append((path[row.observed_positions - 1], row.token_ids[row.observed_positions], row.observed_weights))
    if not found:
        return None
    return Observations(
        nodes=frozen(np.concatenate([part[0] for part in found])),
        token_ids=frozen(np.concatenate([part[1] for part in found])),
        weights=np.concatenate([part[2] for part in found]),
    )
