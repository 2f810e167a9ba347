"""Hidden states of token trees under a model that knows only sequences.

A tree goes through the model as one row: depth is the position, and a mask lets each node see its ancestors and itself.
A chain needs no mask; chains of one batch are padded to a rectangle.

Axes: ``M`` nodes, ``B`` rows, ``T`` positions, ``D`` hidden size.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kifu.batching import Tree
from kifu.engines.hf.blocks import masked
from kifu.engines.hf.loading import CausalModel
from kifu.records import Bools, Ints, as_ints

EXACT = 1e-4
"""Largest relative distance between hidden states of a tree and of its sequences, in float32."""


PADDED_AT_MOST = 1.3
"""Largest padded rectangle relative to the tokens in it."""


def forest_hidden(model: CausalModel, trees: Sequence[Tree], *, unrolled: bool, nodes: int | None = None) -> Tensor:
    """``[M, D]`` hidden states of all nodes of all trees, in order.

    Args:
        model: gives the hidden states; gradients flow.
        trees: each root begins a sequence.
        unrolled: forward every root-to-leaf path as a sequence of its own, sharing nothing.
        nodes: of a block of attention (`kifu.engines.hf.blocks`); None compares every node with every node.
    """
    if all(is_chain(tree) for tree in trees):
        return _padded(model, [tree.token_ids for tree in trees])
    if not unrolled:
        return torch.cat([_tree_hidden(model, tree, nodes=nodes) for tree in trees])
    return torch.cat([_unrolled(model, tree) for tree in trees])


def is_chain(tree: Tree) -> bool:
    """Whether every node follows the one before it."""
    return bool((tree.parents == np.arange(-1, tree.parents.size - 1)).all())


def ancestor_mask(parents_M: Ints) -> Bools:
    """``[M, M]`` True where the column is the row's ancestor or the row itself.

    Nodes are renumbered depth first; then the descendants of a node are an interval.
    """
    count = parents_M.size
    sizes, parents = [1] * count, parents_M.tolist()
    for node in range(count - 1, -1, -1):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    free, entry, next_root = [0] * count, [0] * count, 0
    for node in range(count):
        parent = parents[node]
        if parent < 0:
            entry[node], next_root = next_root, next_root + sizes[node]
        else:
            entry[node], free[parent] = free[parent], free[parent] + sizes[node]
        free[node] = entry[node] + 1
    first, size = np.asarray(entry), np.asarray(sizes)
    mask: Bools = (first[:, None] >= first[None]) & (first[:, None] < (first + size)[None])
    return mask


def paths(parents_M: Ints) -> list[npt.NDArray[np.int64]]:
    """Nodes of every root-to-leaf path, by leaf."""
    leaves = np.setdiff1d(np.arange(parents_M.size), parents_M)
    found = []
    for leaf in leaves.tolist():
        path, node = list[int](), leaf
        while node >= 0:
            path.append(node)
            node = int(parents_M[node])
        found.append(np.asarray(path[::-1], dtype=np.int64))
    return found


def tree_is_exact(model: CausalModel, *, nodes: int | None) -> bool:
    """Whether a small tree, in blocks of so many nodes or none, gives the hidden states of its separate sequences."""
    generator = np.random.Generator(np.random.PCG64(0))
    parents = as_ints_signed([-1, 0, 1, 2, 3, 3, 5, 6, 2, 8, 9, 9, 11])
    depths = np.array([0, 1, 2, 3, 4, 4, 5, 6, 3, 4, 5, 5, 6], dtype=np.int32)
    ids = as_ints(generator.integers(0, model.vocabulary, parents.size))
    tree = Tree(token_ids=ids, depths=depths, parents=parents)
    with torch.no_grad():
        wanted = _unrolled(model, tree)
        try:
            found = _tree_hidden(model, tree, nodes=nodes)
        except (ValueError, TypeError, RuntimeError):
            return False
    return bool((found - wanted).norm() <= EXACT * wanted.norm())


def as_ints_signed(values: Sequence[int]) -> Ints:
    """Copy to a read-only int32 array that may hold -1."""
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


def _tree_hidden(model: CausalModel, tree: Tree, *, nodes: int | None) -> Tensor:
    ids = torch.from_numpy(tree.token_ids.astype(np.int64)).to(model.device)[None]
    if is_chain(tree):
        return model.hidden(ids)[0]
    depths = torch.from_numpy(tree.depths.astype(np.int64)).to(model.device)[None]
    visible = torch.from_numpy(ancestor_mask(tree.parents)).to(model.device)
    return model.hidden(ids, position_ids=depths, attention_mask=masked(visible, dtype=model.dtype, nodes=nodes))[0]


def _padded(model: CausalModel, sequences: Sequence[npt.NDArray[np.int32]]) -> Tensor:
    """``[M, D]`` hidden states of sequences, one after the other."""
    return torch.cat([_rectangle(model, part) for part in _parts(sequences)])


def _parts(sequences: Sequence[npt.NDArray[np.int32]]) -> list[list[npt.NDArray[np.int32]]]:
    """Consecutive sequences that fill most of the rectangle they are padded to."""
    found: list[list[npt.NDArray[np.int32]]] = []
    for sequence in sequences:
        joined = [*found[-1], sequence] if found else []
        area = len(joined) * max((part.size for part in joined), default=0)
        if joined and area <= PADDED_AT_MOST * sum(part.size for part in joined):
            found[-1] = joined
        else:
            found.append([sequence])
    return found


def _rectangle(model: CausalModel, sequences: Sequence[npt.NDArray[np.int32]]) -> Tensor:
    rows = [torch.from_numpy(ids.astype(np.int64)) for ids in sequences]
    ids_BT = pad_sequence(rows, batch_first=True).to(model.device)
    hidden_BTD = model.hidden(ids_BT)
    width = ids_BT.shape[1]
    at = np.concatenate([np.arange(row.numel()) + number * width for number, row in enumerate(rows)])
    return hidden_BTD.flatten(0, 1).index_select(0, torch.from_numpy(at).to(model.device))


def _unrolled(model: CausalModel, tree: Tree) -> Tensor:
    found = paths(tree.parents)
    hidden = _padded(model, [tree.token_ids[path] for path in found])
    flat = np.concatenate(found)
    first = np.full(tree.token_ids.size, -1, dtype=np.int64)
    first[flat[::-1]] = np.arange(flat.size)[::-1]
    return hidden.index_select(0, torch.from_numpy(first).to(model.device))
