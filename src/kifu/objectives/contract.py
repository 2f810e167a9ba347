"""What an engine hands to an objective and what it gets back.

Axes: ``N`` occurrences of sampled tokens, ``K`` values to regress. Every objective returns sums: the global
denominators are already inside the weights, so micro-batches add up in any split.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueTerms:
    """Values of states, as computed now and as they should be."""

    value_K: Tensor
    """Carries the gradient."""
    target_K: Tensor
    old_value_K: Tensor
    """As recorded when sampling."""
    weight_K: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedTerms:
    """Tokens the environment wrote, as the policy would predict them. Axis ``J``."""

    logp_J: Tensor
    """Nats, over the whole vocabulary at temperature 1; carries the gradient."""
    weight_J: Tensor
    """1 over their own global denominator: they are in no other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """Everything a loss may look at, aligned by occurrence."""

    logp_N: Tensor
    """Nats, under the weights being trained, at the recorded temperature and support; carries the gradient."""
    behaviour_logp_N: Tensor
    """Nats, as recorded."""
    advantage_N: Tensor
    weight_N: Tensor
    """1 over the global denominator, times any duplication."""
    turn_N: Tensor
    """int64, consecutive from 0 in the micro-batch."""
    sequence_N: Tensor
    """int64, consecutive from 0 in the micro-batch."""
    entropy_N: Tensor | None = None
    """Nats, of the same distribution; present when the objective asks for it."""
    reference_logp_N: Tensor | None = None
    """Nats, under a frozen reference; present when the plan holds it."""
    values: ValueTerms | None = None
    pair_N: Tensor | None = None
    """int64, consecutive from 0 in the micro-batch; both sides of a pair are in it. The preferred side has advantages
    above 0, the other below."""
    observed: ObservedTerms | None = None
    """Present when the update holds tokens of the environment to predict."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """A scalar to minimize and sums for people."""

    total: Tensor
    """Scalar, summed over the micro-batch."""
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached scalars: sums and counts, never means."""


class Objective(Protocol):
    """A pure function of the terms."""

    @property
    def needs_entropy(self) -> bool:
        """Whether `Terms.entropy_N` must be computed."""
        ...

    def __call__(self, terms: Terms) -> Loss:
        """Sum the loss over the micro-batch."""
        ...
