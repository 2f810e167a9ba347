"""What a trainer is given: packed token trees and, apart from them, every occurrence of a sampled token. Torch-free.

Axes: ``M`` tree nodes (token positions that are forwarded), ``N`` occurrences (sampled tokens of trajectories; two
trajectories that share a node give two occurrences), ``K`` values to regress, ``S`` ids of a support.

Sharing is of the forward only. A node's logits are gathered to every occurrence, with that occurrence's own behaviour
logprob, support, advantage and weight: two members that share a token with opposite advantages off ratio 1 do not
cancel the way a merged node would.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kifu.errors import RecordError
from kifu.records import Bools, Floats, Ints, Support

Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """Token sequences merged by common prefix; a node attends to its ancestors and itself."""

    token_ids: Ints
    """``[M]`` parents before children."""
    depths: Ints
    """``[M]`` position in the sequence, used as position id."""
    parents: Ints
    """``[M]`` index of the parent, -1 at a root (kept as int32; the array is not token ids)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occurrences:
    """Every sampled token that is trained, one entry per trajectory that holds it."""

    nodes: Ints
    """``[N]`` node (of the batch's concatenated trees) whose logits predict the token: the parent of its own node."""
    token_ids: Ints
    """``[N]``"""
    behaviour_logprobs: Floats
    """``[N]`` nats, as recorded."""
    temperatures: Floats
    """``[N]``"""
    supports: tuple[Support | None, ...]
    """``[N]``"""
    advantages: Doubles
    """``[N]`` credit of the token."""
    weights: Doubles
    """``[N]`` factor in the summed loss: 1 over the global denominator of the reduction, times any duplication."""
    turns: Ints
    """``[N]`` consecutive numbers from 0 in the batch; equal for tokens of one turn of one trajectory."""
    sequences: Ints
    """``[N]`` consecutive numbers from 0 in the batch; equal for tokens of one trajectory."""
    reference_logprobs: Floats | None = None
    """``[N]`` nats under a frozen reference, where the algorithm needs one."""
    pairs: Ints | None = None
    """``[N]`` consecutive numbers from 0 in the batch; equal for the tokens of both sides of a preference pair."""

    def __len__(self) -> int:
        return int(self.token_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueTargets:
    """Values to regress, for engines with a critic."""

    nodes: Ints
    """``[K]`` node whose state is valued: the last token before the turn's first sampled token."""
    targets: Doubles
    """``[K]``"""
    old_values: Doubles
    """``[K]`` as recorded when sampling."""
    weights: Doubles
    """``[K]``"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """Tokens of the environment to predict, for the auxiliary loss. Axis ``J``."""

    nodes: Ints
    """``[J]`` node whose logits predict the token."""
    token_ids: Ints
    """``[J]``"""
    weights: Doubles
    """``[J]`` 1 over their own global denominator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One micro-batch. Node indices count through ``trees`` in order."""

    trees: tuple[Tree, ...]
    occurrences: Occurrences
    values: ValueTargets | None = None
    observations: Observations | None = None
    trajectories: tuple[str, ...] = ()
    """Ids, for messages that name the batch."""

    def __post_init__(self) -> None:
        total = sum(int(tree.token_ids.size) for tree in self.trees)
        nodes = self.occurrences.nodes
        if nodes.size and (int(nodes.min()) < 0 or int(nodes.max()) >= total):
            raise RecordError(f"batch of {self.trajectories[:2]}: an occurrence points outside the {total} nodes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One sequence to pack: a tape of a trajectory with the credit of its own sampled tokens."""

    trajectory: str
    tape: int = 0
    token_ids: Ints
    """``[T]`` whole sequence, ancestors included."""
    positions: Ints
    """``[N]`` positions of trained tokens, increasing, each >= 1."""
    behaviour_logprobs: Floats
    temperatures: Floats
    supports: tuple[Support | None, ...]
    advantages: Doubles
    weights: Doubles
    turns: Ints
    """``[N]`` turn index inside the trajectory."""
    reference_logprobs: Floats | None = None
    """``[N]``"""
    value_positions: Ints | None = None
    """``[K]`` positions whose state is valued."""
    value_targets: Doubles | None = None
    old_values: Doubles | None = None
    value_weights: Doubles | None = None
    pair: int | None = None
    """Number of the preference pair in the update; its rows are never in different micro-batches."""
    observed_positions: Ints | None = None
    """``[J]`` positions of tokens of the environment that are predicted, each >= 1."""
    observed_weights: Doubles | None = None
    """``[J]``"""

    @property
    def mask(self) -> Bools:
        """``[T]`` True at trained tokens."""
        found = np.zeros(self.token_ids.size, dtype=np.bool_)
        found[self.positions] = True
        return found
