"""What was computed for every prefix of the live contexts, each prefix once.

A context is a path from the root; contexts that begin alike share nodes, so a group's prompt, a fork and a repeated
episode are computed once while somebody still holds them.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kifu.engines.recurrent.model import ActorCritic
from kifu.engines.recurrent.threads import one_thread

BLOCK = 32
"""Rows of every forward. A fixed shape keeps a row's arithmetic independent of how many neighbours it has."""


class Prefix:
    """A node: one token after another prefix, and what the model makes of it once it was fed."""

    __slots__ = ("answers", "children", "depth", "holders", "logits", "parent", "state", "token", "value")

    def __init__(self, token: int, parent: "Prefix | None") -> None:
        self.token = token
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Tokens of the prefix."""
        self.children: dict[int, Prefix] = {}
        self.holders = 0
        """Paths that run through the node."""
        self.state: npt.NDArray[Any] | None = None
        self.logits: npt.NDArray[Any] | None = None
        """``[V]`` of the next token."""
        self.value = 0.0
        self.answers: dict[Hashable, object] = {}
        """Distributions already worked out from the logits, by sampling rules."""


class PrefixTree:
    """All nodes under one set of weights.

    Args:
        model: computes the states; never trained here.
    """

    def __init__(self, model: ActorCritic) -> None:
        dtype = model.embedding.dtype
        self._model = model
        self._state_BH = torch.zeros(BLOCK, model.hidden, dtype=dtype)
        self._token_B = torch.zeros(BLOCK, dtype=torch.int64)
        self.root = Prefix(-1, None)
        self.root.state = np.zeros(model.hidden, dtype=self._state_BH.numpy().dtype)

    def extend(self, path: list[Prefix], tokens: Iterable[int]) -> None:
        """Lengthen a path, holding every node that is added; ``path`` starts empty at the root."""
        node = path[-1] if path else self.root
        for token in tokens:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Prefix(token, node)
            child.holders += 1
            path.append(child)
            node = child

    @staticmethod
    def let_go(path: Sequence[Prefix]) -> None:
        """Drop a path; nodes nobody holds any more are forgotten."""
        for node in reversed(path):
            node.holders -= 1
            if node.holders == 0 and node.parent is not None:
                del node.parent.children[node.token]

    def feed(self, nodes: Sequence[Prefix]) -> None:
        """Compute nodes whose parents are computed, at most `BLOCK` of them per forward."""
        for start in range(0, len(nodes), BLOCK):
            self._feed_block(nodes[start : start + BLOCK])

    def _feed_block(self, nodes: Sequence[Prefix]) -> None:
        states, tokens = self._state_BH.numpy(), self._token_B.numpy()
        for row, node in enumerate(nodes):
            assert node.parent is not None
            assert node.parent.state is not None
            states[row] = node.parent.state
            tokens[row] = node.token
        states[len(nodes) :] = 0
        tokens[len(nodes) :] = 0
        with one_thread(), torch.inference_mode():
            state_BH = self._model.step(self._state_BH, self._token_B)
            logits_BV = self._model.logits(state_BH).numpy()
            value_B = self._model.values(state_BH).numpy()
        found = state_BH.numpy()
        for row, node in enumerate(nodes):
            node.state, node.logits, node.value = found[row].copy(), logits_BV[row].copy(), float(value_B[row])
