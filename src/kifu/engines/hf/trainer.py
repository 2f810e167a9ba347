"""The trainer: float32 master weights of a causal language model, or an adapter on them.

Axes: ``M`` nodes of a batch, ``N`` occurrences of sampled tokens, ``D`` hidden size.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import deterministic

from kifu.batching import Observations, Occurrences, PackedBatch
from kifu.engines.hf.blocks import NODES
from kifu.engines.hf.forward import forest_hidden, tree_is_exact
from kifu.engines.hf.loading import DTYPES, CausalModel
from kifu.engines.hf.lora import adapter_tensors, add_adapter, refresh_adapter
from kifu.engines.hf.masters import Masters
from kifu.engines.hf.reference import Reference
from kifu.engines.hf.threads import apart, return_free_memory
from kifu.engines.hf.weights import fill, to_weights
from kifu.errors import ModelError, UsageError
from kifu.objectives import Head, Objective, ObservedTerms, Optimizer, Terms, support_logprobs
from kifu.policy import AdamW, LoraWeights, Machine, StepResult, Weights, WeightsSpec
from kifu.records import Bools, Floats, as_floats, unpack_bitmap

NAMED = 4
"""Trajectories a message names."""
SMALL = 4
"""Nodes of a block of the small tree that is tried."""


class HfTrainer:
    """Implements `Trainer`.

    Args:
        model: float32; changed in place, nobody else may use it.
        weights: what is trained.
        optimizer: rates and schedule.
        machine: dtypes, checkpointing.
        seed: of the adapter's random half.
    """

    def __init__(
        self, model: CausalModel, *, weights: WeightsSpec, optimizer: AdamW, machine: Machine, seed: int
    ) -> None:
        self._model = model
        self._machine = machine
        self._is_adapter = isinstance(weights, LoraWeights)
        self._nodes = NODES if tree_is_exact(model, nodes=SMALL) else None
        self.tree_exact = self._nodes is not None or tree_is_exact(model, nodes=None)
        """Whether shared prefixes are forwarded once; otherwise every path goes through the model on its own."""
        self.adapted: dict[str, Tensor] = {}
        """Frozen float32 weights under an adapter, by name."""
        self.bitmaps: dict[str, bytes] = {}
        """Packed bitmaps of supports by digest; whoever trains on old records adds theirs."""
        dtype = DTYPES[machine.trainer_dtype]
        if isinstance(weights, LoraWeights):
            self.adapted = add_adapter(model, weights, seed=seed, dtype=dtype)
        if machine.activation_checkpointing:
            model.whole.activation_checkpointing_enable({"use_reentrant": False})
            model.whole.train()
        self._masters = Masters(model, dtype=dtype, has_adapter=self._is_adapter)
        self._parameters = self._masters.parameters
        self._frozen_head = self._masters.rounded(model.head) if self._is_adapter else None
        self._optimizer = Optimizer(self._parameters, optimizer)
        self._reference: Reference | None = None
        self._published = 0
        self._loss = 0.0
        self._trajectories: list[str] = []

    @property
    def num_trainable(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    def forward_backward(self, batch: PackedBatch, objective: Objective) -> Mapping[str, float]:
        """Accumulate gradients of the summed loss; return sums and counts, never means.

        Raises:
            UsageError: the batch regresses values, and the engine has no critic.
        """
        if batch.values is not None:
            raise UsageError("engine `hf` has no critic: take an algorithm without values, or engine `recurrent`")
        self._trajectories.extend(batch.trajectories)
        total, found = apart(lambda: self._accumulate(batch, objective))
        return_free_memory()
        self._loss += total
        nodes = sum(tree.token_ids.size for tree in batch.trees)
        return found | {"loss": total, "nodes": float(nodes), "occurrences": float(len(batch.occurrences))}

    def _accumulate(self, batch: PackedBatch, objective: Objective) -> tuple[float, dict[str, float]]:
        with _deterministic():
            loss = objective(self.terms(batch, needs_entropy=objective.needs_entropy))
            total = float(loss.total.detach())
            if isfinite(total) and loss.total.requires_grad:
                loss.total.backward()
        return total, {name: float(value) for name, value in loss.stats.items()}

    def terms(self, batch: PackedBatch, *, needs_entropy: bool = False) -> Terms:
        """What a loss may look at, with the gradient attached."""
        occurrences, device = batch.occurrences, self._model.device
        hidden_MD = forest_hidden(self._model, batch.trees, unrolled=not self._shares(batch), nodes=self._nodes)
        nodes_N = torch.from_numpy(occurrences.nodes.astype(np.int64)).to(device)
        hidden_ND = hidden_MD.index_select(0, nodes_N).float()
        weight_VD = self._masters.rounded(self._model.head) if self._frozen_head is None else self._frozen_head
        logp_N, entropy_N = support_logprobs(
            hidden_ND,
            Head(weight_VD=weight_VD),
            token_N=torch.from_numpy(occurrences.token_ids.astype(np.int64)).to(device),
            temperature_N=torch.from_numpy(np.array(occurrences.temperatures)).to(device),
            supports=occurrences.supports,
            bitmaps=_unpacked(occurrences, self.bitmaps, vocabulary=self._model.vocabulary),
            needs_entropy=needs_entropy,
        )
        found = _terms(occurrences, logp_N, entropy_N)
        if batch.observations is None:
            return found
        return replace(found, observed=_observed(hidden_MD, weight_VD, batch.observations))

    def hold(self, weights: Weights) -> None:
        """Keep these weights, frozen, as the reference; those held before are let go.

        Raises:
            UsageError: an adapter for a model trained in full, or the reverse.
            ModelError: names or shapes differ.
        """
        _check_kind(weights, is_adapter=self._is_adapter, what="the reference is")
        trained, read = self._parameters, self._model.parameters()
        parameters = adapter_tensors(trained) if self._is_adapter else {name: read[name] for name in trained}
        self._reference = Reference(weights, parameters=parameters)

    def logprobs(self, batch: PackedBatch, *, reference: bool) -> Floats:
        """``[N]`` nats of every occurrence, under the held reference or under the present weights.

        Raises:
            UsageError: no reference is held.
        """
        if reference and self._reference is None:
            raise UsageError("no reference is held; call `hold` with the weights to compare with")

        def scored() -> Floats:
            with torch.no_grad(), _deterministic():
                return as_floats(self.terms(batch).logp_N.cpu().numpy())

        def under_reference() -> Floats:
            assert self._reference is not None
            with self._reference.in_place(lambda: refresh_adapter(self._model) if self._is_adapter else None):
                return scored()

        return apart(under_reference if reference else scored)

    def optim_step(self) -> StepResult:
        """Clip, step, clear the gradients; nothing moves when loss or gradient is not finite."""

        def step() -> StepResult:
            with _deterministic():
                result = self._optimizer.step(loss=self._loss)
            self._refresh()
            return result

        found = apart(step)
        if not found.applied:
            named = ", ".join(self._trajectories[:NAMED]) or "none"
            more = len(self._trajectories) - NAMED
            named += f" and {more} more" if more > 0 else ""
            found = replace(found, why=f"{found.why}; trajectories of the batch: {named}")
        self._loss = 0.0
        self._trajectories.clear()
        return found

    def gradients(self) -> dict[str, np.ndarray]:
        """What was accumulated since the last step, by parameter; for checks."""
        return {
            name: value.grad.detach().cpu().numpy().copy()
            for name, value in self._parameters.items()
            if value.grad is not None
        }

    def state(self) -> dict[str, Any]:
        """Trained weights, moments, schedule position and number of publishes, as numpy arrays."""
        return {
            "weights": {name: value.detach().cpu().numpy().copy() for name, value in self._parameters.items()},
            "optimizer": self._optimizer.state(),
            "published": self._published,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, bit for bit; gradients not yet applied are dropped.

        Raises:
            ModelError: the state belongs to other parameters.
        """
        weights = state["weights"]
        odd = sorted(set(weights) ^ set(self._parameters))
        if odd:
            raise ModelError(f"the checkpoint does not fit what is trained here: {len(odd)} names differ, {odd[:3]}")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(np.array(weights[name])))
                parameter.grad = None
        self._refresh()
        self._optimizer.load_state(state["optimizer"])
        self._published = int(state["published"])
        self._loss = 0.0
        self._trajectories.clear()

    def start_from(self, weights: Weights) -> None:
        """Begin with published weights; the next publish is their version.

        Raises:
            UsageError: an adapter for a model trained in full, or the reverse.
            ModelError: names or shapes differ.
        """
        _check_kind(weights, is_adapter=self._is_adapter, what="the initial weights are")
        fill(adapter_tensors(self._parameters) if self._is_adapter else self._parameters, weights)
        self._refresh()
        self._published = weights.version

    def publish(self) -> Weights:
        """The present weights as the next version: in the sampler's dtype, or the adapter in float32."""
        version, self._published = self._published, self._published + 1
        dtype, trained = DTYPES[self._machine.sampler_dtype], self._parameters

        def copied() -> Weights:
            rounded = {name: value.detach().to(dtype) for name, value in trained.items() if not self._is_adapter}
            tensors = adapter_tensors(trained) if self._is_adapter else rounded
            return to_weights(tensors, version=version, is_adapter=self._is_adapter)

        return apart(copied)

    def _refresh(self) -> None:
        self._masters.refresh()
        if self._is_adapter:
            refresh_adapter(self._model)

    def _shares(self, batch: PackedBatch) -> bool:
        window = getattr(self._model.whole.config, "sliding_window", None)
        deepest = max((int(tree.depths.max()) for tree in batch.trees if tree.depths.size), default=0)
        return self.tree_exact and not (isinstance(window, int) and deepest >= window)


def _check_kind(weights: Weights, *, is_adapter: bool, what: str) -> None:
    if weights.is_adapter != is_adapter:
        raise UsageError(
            f"{what} {'an adapter' if weights.is_adapter else 'full weights'}, and here "
            f"{'an adapter' if is_adapter else 'every parameter'} is trained; make policy.weights the same"
        )


def _unpacked(occurrences: Occurrences, bitmaps: Mapping[str, bytes], *, vocabulary: int) -> dict[str, Bools]:
    digests = {support.mask for support in occurrences.supports if support is not None and support.mask}
    return {digest: unpack_bitmap(bitmaps[digest], vocabulary) for digest in digests if digest in bitmaps}


def _terms(occurrences: Occurrences, logp_N: Tensor, entropy_N: Tensor | None) -> Terms:
    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device=logp_N.device, dtype=logp_N.dtype)

    def numbered(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(logp_N.device)

    reference = occurrences.reference_logprobs
    return Terms(
        logp_N=logp_N,
        behaviour_logp_N=moved(occurrences.behaviour_logprobs),
        advantage_N=moved(occurrences.advantages),
        weight_N=moved(occurrences.weights),
        turn_N=numbered(occurrences.turns),
        sequence_N=numbered(occurrences.sequences),
        entropy_N=entropy_N,
        reference_logp_N=None if reference is None else moved(reference),
        pair_N=None if occurrences.pairs is None else numbered(occurrences.pairs),
    )


def _observed(hidden_MD: Tensor, weight_VD: Tensor, seen: Observations) -> ObservedTerms:
    """Tokens of the environment, over the whole vocabulary at temperature 1."""
    nodes_J, token_J = (torch.from_numpy(array.astype(np.int64)) for array in (seen.nodes, seen.token_ids))
    device = hidden_MD.device
    logp_J, _ = support_logprobs(
        hidden_MD.index_select(0, nodes_J.to(device)).float(),
        Head(weight_VD=weight_VD),
        token_N=token_J.to(device),
        temperature_N=torch.ones(token_J.shape, device=device),
        supports=(None,) * seen.token_ids.size,
    )
    return ObservedTerms(logp_J=logp_J, weight_J=torch.from_numpy(seen.weights).to(device=device, dtype=logp_J.dtype))


@contextmanager
def _deterministic() -> Iterator[None]:
    """Ask torch for deterministic kernels, as far as the device has them."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a property of the module
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads memory before it is written, and filling it costs a fifteenth of a step.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
