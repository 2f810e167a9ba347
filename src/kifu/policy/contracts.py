"""What a sampler, a scorer and a trainer owe the rest of the library. Torch-free.

Axes: ``T`` tokens of a whole context, ``N`` new or scored tokens, ``S`` ids of a support.

Every implementation of `Sampler` and `Trainer` passes ``kifu.testing.check_sampler`` and ``check_trainer``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy.typing as npt

from kifu.errors import RecordError
from kifu.records.tokens import Bools, Floats, Ints, Sampling, Support
from kifu.records.turns import Finish
from kifu.records.weights import weights_digest


class Constraint(Protocol):
    """A grammar over the tokens of one turn, as a pure function of what was written so far."""

    @property
    def digest(self) -> str:
        """SHA-256 that names the grammar; it goes into `Sampling.grammar`."""
        ...

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """``[S]`` increasing ids allowed after ``prefix``.

        None allows every token; empty means the turn is complete. A stop token is part of the grammar.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One call: continue one context by one assistant turn."""

    context: str
    """Names the context whose keys and values may be kept between calls; one tape of one rollout."""
    token_ids: Ints
    """``[T]`` the whole context, exactly. The engine finds what it already computed by longest prefix."""
    sampling: Sampling
    """Its ``stream`` keys the random numbers, its ``stop_ids`` end the turn."""
    turn: int
    max_new_tokens: int
    constraint: Constraint | None = None
    prefix_group: str = ""
    """Calls of one group may begin alike, with a system message or a worked example or more; an engine computes what
    they share once. An empty one shares with nobody."""
    alternatives: int = 0
    """How many of the likeliest tokens to tell beside each sampled one, by engines that can."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """What one call wrote."""

    token_ids: Ints
    """``[N]``; a sampled stop token is included."""
    sampled: Bools
    """``[N]`` False where the support had one member: nobody chose, the token has no logprob."""
    logprobs: Floats
    """``[N]`` nats, NaN where not sampled."""
    policy_version: int
    finish: Finish
    sampling: Sampling
    """The effective distribution, with engine and dtype filled in."""
    support: tuple[Support | None, ...] | None = None
    """``[N]``"""
    value: float | None = None
    """V(h) of the context before the first new token, where the engine has a critic."""
    entropy: float | None = None
    """Mean over sampled tokens, nats, of the distribution sampled from."""
    entropies: Floats | None = None
    """``[N]`` nats, of the distribution each token was sampled from; NaN where not sampled."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] | None = None
    """``[N]`` the likeliest ids with their nats, in falling order, of the distribution each token was sampled from;
    empty where nobody chose. None when none were asked for, or when the engine cannot tell them."""

    def __post_init__(self) -> None:
        count = self.token_ids.size
        if self.sampled.size != count or self.logprobs.size != count:
            raise RecordError(f"generation: {count} ids, {self.sampled.size} flags, {self.logprobs.size} logprobs")
        if self.support is not None and len(self.support) != count:
            raise RecordError(f"generation: {count} ids, {len(self.support)} supports")
        if self.entropies is not None and self.entropies.size != count:
            raise RecordError(f"generation: {count} ids, {self.entropies.size} entropies")
        if self.alternatives is not None and len(self.alternatives) != count:
            raise RecordError(f"generation: {count} ids, alternatives of {len(self.alternatives)}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreRequest:
    """Teacher-forced question: how likely were these tokens under these rules?"""

    token_ids: Ints
    """``[T]`` a whole sequence."""
    positions: Ints
    """``[N]`` positions whose token is scored, each >= 1."""
    sampling: Sampling
    support: tuple[Support | None, ...] | None = None
    """``[N]``, aligned with ``positions``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Answers to one `ScoreRequest`."""

    logprobs: Floats
    """``[N]`` nats under the recorded temperature and support."""
    entropy: Floats
    """``[N]`` nats."""
    value: Floats | None = None
    """``[N]`` V of the context before each scored token, where the engine has a critic."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """One published version of the policy, as plain arrays."""

    version: int
    """Number of publishes before this one."""
    tensors: Mapping[str, npt.NDArray[Any]]
    """Read-only. bfloat16 tensors are uint16 bit patterns, named in ``bfloat16``."""
    bfloat16: frozenset[str] = field(default_factory=frozenset)
    is_adapter: bool = False
    """True when the tensors are an adapter (LoRA) on the initial weights."""

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
        return weights_digest(self.tensors, self.bfloat16)


class Scorer(Protocol):
    """Teacher-forced probabilities."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score each request under the weights now loaded."""
        ...


class Sampler(Scorer, Protocol):
    """Continues contexts. A generation is a pure function of (weights, context ids, sampling, stream, turn)."""

    @property
    def version(self) -> int:
        """Version of the weights now loaded."""
        ...

    async def sample(self, request: Request) -> Generation:
        """Continue one context. Whatever is pending is computed together; no caller waits for another's tool."""
        ...

    async def load(self, weights: Weights) -> None:
        """Wait for running calls, then take the weights and drop what was computed with the old ones."""
        ...

    def release(self, context: str) -> None:
        """Forget what is kept for a context; unknown names are fine."""
        ...


Batch = TypeVar("Batch", contravariant=True)
Objective = TypeVar("Objective", contravariant=True)


@runtime_checkable
class BatchScorer(Protocol[Batch]):
    """A trainer that also tells how likely a batch is, without a gradient; asked for by methods with a reference."""

    def hold(self, weights: Weights) -> None:
        """Keep these weights, frozen, as the reference; those held before are let go."""
        ...

    def logprobs(self, batch: Batch, *, reference: bool) -> Floats:
        """``[N]`` nats of every occurrence of the batch, under the held reference or under the present weights."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What became of one optimizer step."""

    applied: bool
    """False when loss or gradient was not finite, or no batch carried a gradient: then nothing moved."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    why: str = ""
    """Why the step was not applied."""


class Trainer(Protocol[Batch, Objective]):
    """Owns the trainable weights and the optimizer."""

    def forward_backward(self, batch: Batch, objective: Objective) -> Mapping[str, float]:
        """Accumulate gradients of the summed loss; return sums and counts, never means."""
        ...

    def optim_step(self) -> StepResult:
        """Clip, step, clear the gradients."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit: weights, moments, schedule position. Tensors as numpy arrays."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        ...

    def publish(self) -> Weights:
        """The present weights as the next version, in the dtype the sampler uses."""
        ...
