"""The trainer: whole sequences without padding, the loss per occurrence.

Axes: ``M`` nodes of a batch, ``T`` positions, ``H`` width of the state, ``N`` occurrences, ``K`` values.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kifu.batching import Observations, PackedBatch, ValueTargets
from kifu.engines.recurrent.model import ActorCritic
from kifu.engines.recurrent.threads import one_thread
from kifu.engines.recurrent.weights import load_tensors, load_weights, read_tensors
from kifu.errors import EngineFailure
from kifu.objectives import Head, Objective, ObservedTerms, Optimizer, Terms, ValueTerms, support_logprobs
from kifu.policy import AdamW, StepResult, Weights
from kifu.records import Floats, as_floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The sequences of a batch, time-major and ragged, longest first."""

    nodes_M: npt.NDArray[np.int64]
    """Node at each place of the layout."""
    places_M: npt.NDArray[np.int64]
    """Place of each node."""
    batch_sizes_T: npt.NDArray[np.int64]
    """Sequences that have a token at each time."""


class _Forward(NamedTuple):
    """What one forward gives."""

    state_MH: Tensor
    logp_N: Tensor
    entropy_N: Tensor | None


def layout(batch: PackedBatch) -> Rows:
    """Lay the chains of a batch out for a recurrent forward.

    Raises:
        EngineFailure: a node has two children, or a chain does not count its positions from 0. A row is one walk
            through the recurrence; plan this engine's batches as rows.
    """
    parents_M = np.concatenate([tree.parents for tree in batch.trees] or [np.zeros(0, np.int32)])
    depths_M = np.concatenate([tree.depths for tree in batch.trees] or [np.zeros(0, np.int32)])
    sizes = [tree.token_ids.size for tree in batch.trees]
    local_M = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, np.int64)])
    is_start_M = parents_M == -1
    start_of_M = np.maximum.accumulate(np.where(is_start_M, np.arange(local_M.size), 0))
    chained_M = is_start_M | (parents_M == local_M - 1)
    counted_M = depths_M == np.arange(local_M.size) - start_of_M
    if not bool((chained_M & counted_M).all()):
        node = int(np.flatnonzero(~(chained_M & counted_M))[0])
        raise EngineFailure(
            f"batch of {list(batch.trajectories[:2])}: node {node} at depth {int(depths_M[node])} branches off node "
            f"{int(parents_M[node])} of its tree; the recurrent engine takes plain rows. Plan with layout = rows."
        )
    starts = np.flatnonzero(is_start_M)
    lengths = np.diff(np.append(starts, local_M.size))
    rank = np.empty(starts.size, dtype=np.int64)
    rank[np.argsort(-lengths, kind="stable")] = np.arange(starts.size)
    nodes_M = np.lexsort((np.repeat(rank, lengths), depths_M)).astype(np.int64)
    places_M = np.empty_like(nodes_M)
    places_M[nodes_M] = np.arange(nodes_M.size)
    return Rows(nodes_M=nodes_M, places_M=places_M, batch_sizes_T=np.bincount(depths_M).astype(np.int64))


class RecurrentTrainer:
    """Implements `Trainer` for `PackedBatch` and the objectives of this library.

    Works on one thread: sums then have one order, and equal steps give equal bits whatever the machine's thread count.

    Args:
        model: the weights to train; nobody else's.
        optimizer: rates, decay, clipping.
        version: of the next publish.
    """

    def __init__(self, model: ActorCritic, *, optimizer: AdamW, version: int) -> None:
        self.model = model
        self._optimizer = Optimizer(dict(model.named_parameters()), optimizer)
        self._version = version
        self._reference: ActorCritic | None = None
        self._loss = 0.0
        self._batches: list[str] = []

    def forward_backward(self, batch: PackedBatch, objective: Objective) -> dict[str, float]:
        """Accumulate the gradient of the summed loss."""
        with one_thread():
            terms = self.terms(batch, needs_entropy=objective.needs_entropy)
            loss = objective(terms)
            if loss.total.requires_grad:
                loss.total.backward()
        self._loss += float(loss.total.detach())
        self._batches.append(batch.trajectories[0] if batch.trajectories else "unnamed")
        return {
            "loss": float(loss.total.detach()),
            "nodes": float(sum(tree.token_ids.size for tree in batch.trees)),
            **{name: float(value) for name, value in loss.stats.items()},
        }

    def hold(self, weights: Weights) -> None:
        """Keep these weights as the reference."""
        self._reference = deepcopy(self.model).requires_grad_(requires_grad=False)
        load_weights(self._reference, weights)

    def logprobs(self, batch: PackedBatch, *, reference: bool) -> Floats:
        """``[N]`` nats of every occurrence, under the held reference or the present weights.

        Raises:
            EngineFailure: no reference is held.
        """
        model = self._reference if reference else self.model
        if model is None:
            raise EngineFailure("no reference is held; call `hold` with the weights to compare with")
        with one_thread(), torch.no_grad():
            return as_floats(self._forward(model, batch, needs_entropy=False).logp_N.numpy())

    def terms(self, batch: PackedBatch, *, needs_entropy: bool) -> Terms:
        """What the objective looks at, on the graph of one forward."""
        rows, found, dtype = layout(batch), batch.occurrences, self.model.embedding.dtype
        forward = self._forward(self.model, batch, needs_entropy=needs_entropy)
        reference = found.reference_logprobs
        return Terms(
            logp_N=forward.logp_N,
            behaviour_logp_N=_number(found.behaviour_logprobs, dtype),
            advantage_N=_number(found.advantages, dtype),
            weight_N=_number(found.weights, dtype),
            turn_N=_index(found.turns),
            sequence_N=_index(found.sequences),
            entropy_N=forward.entropy_N,
            reference_logp_N=None if reference is None else _number(reference, dtype),
            pair_N=None if found.pairs is None else _index(found.pairs),
            observed=None if batch.observations is None else self._observed(forward.state_MH, rows, batch.observations),
            values=None if batch.values is None else self._values(forward.state_MH, rows, batch.values),
        )

    def _forward(self, model: ActorCritic, batch: PackedBatch, *, needs_entropy: bool) -> _Forward:
        rows, found = layout(batch), batch.occurrences
        tokens_M = np.concatenate([tree.token_ids for tree in batch.trees] or [np.zeros(0, np.int32)])
        self._check_ids(tokens_M)
        state_MH = model.states(
            torch.from_numpy(tokens_M[rows.nodes_M].astype(np.int64)), torch.from_numpy(rows.batch_sizes_T)
        )
        logp_N, entropy_N = support_logprobs(
            state_MH[_index(rows.places_M[found.nodes])],
            Head(weight_VD=model.policy.weight, bias_V=model.policy.bias),
            token_N=_index(found.token_ids),
            temperature_N=_number(found.temperatures, model.embedding.dtype),
            supports=found.supports,
            needs_entropy=needs_entropy,
            chunk=4096,
        )
        return _Forward(state_MH, logp_N, entropy_N)

    def _values(self, state_MH: Tensor, rows: Rows, targets: ValueTargets) -> ValueTerms:
        dtype = state_MH.dtype
        return ValueTerms(
            value_K=self.model.values(state_MH[_index(rows.places_M[targets.nodes])]),
            target_K=_number(targets.targets, dtype),
            old_value_K=_number(targets.old_values, dtype),
            weight_K=_number(targets.weights, dtype),
        )

    def _observed(self, state_MH: Tensor, rows: Rows, seen: Observations) -> ObservedTerms:
        logp_J, _ = support_logprobs(
            state_MH[_index(rows.places_M[seen.nodes])],
            Head(weight_VD=self.model.policy.weight, bias_V=self.model.policy.bias),
            token_N=_index(seen.token_ids),
            temperature_N=torch.ones(seen.token_ids.size, dtype=state_MH.dtype),
            supports=(None,) * seen.token_ids.size,
            chunk=4096,
        )
        return ObservedTerms(logp_J=logp_J, weight_J=_number(seen.weights, state_MH.dtype))

    def _check_ids(self, tokens_M: npt.NDArray[np.int32]) -> None:
        size = self.model.embedding.shape[0]
        if tokens_M.size and int(tokens_M.max()) >= size:
            raise EngineFailure(f"a batch holds token {int(tokens_M.max())}, the vocabulary has {size}")

    def optim_step(self) -> StepResult:
        """Clip, step, clear; a step that is not applied names its batches."""
        with one_thread():
            result = self._optimizer.step(loss=self._loss)
        if not result.applied:
            result = replace(result, why=f"{result.why} (batches from {', '.join(self._batches) or 'nowhere'})")
        self._loss, self._batches = 0.0, []
        return result

    def state(self) -> dict[str, Any]:
        """Weights, moments, schedule position and number of the next version."""
        return {
            "weights": read_tensors(self.model),
            "optimizer": self._optimizer.state(),
            "version": self._version,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; gradients of an unfinished step are dropped."""
        load_tensors(self.model, dict(state["weights"]))
        self._optimizer.load_state(state["optimizer"])
        self._version = int(state["version"])
        self.model.zero_grad(set_to_none=True)
        self._loss, self._batches = 0.0, []

    def publish(self) -> Weights:
        """The present weights as the next version."""
        weights = Weights(version=self._version, tensors=read_tensors(self.model))
        self._version += 1
        return weights


def _index(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _number(values: npt.NDArray[Any], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)
