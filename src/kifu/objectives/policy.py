"""The policy objective: a surrogate, and what is added to it. A frozen value that composes pure functions."""

from dataclasses import dataclass, field
from typing import Literal, assert_never

import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives.contract import Loss, Terms
from kifu.objectives.entropy import entropy_bonus
from kifu.objectives.kl import kl_estimate
from kifu.objectives.ratio import is_trained, segment_log_ratio
from kifu.objectives.surrogate import (
    ClippedRatio,
    ImportanceRatio,
    PreservingClip,
    ScoreFunction,
    Surrogate,
    clipped_surrogate,
    importance_surrogate,
    level_of,
    policy_gradient,
)
from kifu.objectives.value import value_loss
from kifu.objectives.weighted import BandMask, CappedWeight, capped_surrogate, masked_surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBonus:
    """Adds ``- coefficient * sum w H``."""

    coefficient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRegression:
    """Adds ``coefficient * sum w (V - y)^2 / 2``."""

    coefficient: float = 0.5
    clip: float | None = None
    """How far V may move from the recorded one; None does not clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """Adds ``coefficient * sum w k`` against the reference. k1 is not offered: as a loss its expected gradient is 0."""

    coefficient: float
    estimator: Literal["k2", "k3"] = "k3"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """Surrogate plus optional entropy bonus, value regression and penalty against a reference."""

    surrogate: Surrogate = field(default_factory=ScoreFunction)
    entropy: EntropyBonus | None = None
    value: ValueRegression | None = None
    kl: KlPenalty | None = None

    @property
    def needs_entropy(self) -> bool:
        """Whether `Terms.entropy_N` must be computed."""
        return self.entropy is not None

    def __call__(self, terms: Terms) -> Loss:
        """Sum the loss over the micro-batch.

        Raises:
            ArgumentError: a part needs terms that are absent.
        """
        log_ratio_N = segment_log_ratio(terms, level_of(self.surrogate))
        total, bound_N = _surrogate_loss(self.surrogate, terms, log_ratio_N)
        stats = {} if bound_N is None else {"clipped_tokens": bound_N.sum()}
        stats |= {"loss_policy": total.detach()} | _ratio_stats(terms, log_ratio_N)
        for name, part in self._extra_parts(terms).items():
            stats[f"loss_{name}"] = part.detach()
            total = total + part
        if terms.entropy_N is not None:
            kept_N = is_trained(terms.weight_N)
            stats["entropy_sum"] = terms.entropy_N.detach()[kept_N].sum()
            stats["entropy_tokens"] = kept_N.sum()
        if terms.values is not None:
            stats["values"] = (terms.values.weight_K != 0).sum()
        return Loss(total=total, stats=stats)

    def _extra_parts(self, terms: Terms) -> dict[str, Tensor]:
        parts = {}
        if self.entropy is not None:
            if terms.entropy_N is None:
                raise ArgumentError("the entropy bonus needs entropy_N; the engine must honour `needs_entropy`")
            bonus = entropy_bonus(entropy_N=terms.entropy_N, weight_N=terms.weight_N)
            parts["entropy"] = self.entropy.coefficient * bonus
        if self.value is not None:
            if terms.values is None:
                raise ArgumentError("value regression needs values; the engine has no critic or the plan no targets")
            parts["value"] = self.value.coefficient * value_loss(terms.values, clip=self.value.clip)
        if self.kl is not None:
            parts["kl"] = self.kl.coefficient * _reference_penalty(terms, self.kl)
        return parts


@torch.no_grad()
def bound_tokens(surrogate: Surrogate, terms: Terms) -> Tensor:
    """``[N]`` bool, True at the tokens whose ratio a bound of the surrogate holds; never at padding."""
    _, bound_N = _surrogate_loss(surrogate, terms, segment_log_ratio(terms, level_of(surrogate)))
    return torch.zeros_like(terms.weight_N, dtype=torch.bool) if bound_N is None else bound_N


def _surrogate_loss(surrogate: Surrogate, terms: Terms, log_ratio_N: Tensor) -> tuple[Tensor, Tensor | None]:
    """The summed loss, and ``[N]`` where a bound holds; None where there is none to hold."""
    logp_N, credit_N, weight_N = terms.logp_N, terms.advantage_N, terms.weight_N
    match surrogate:
        case ScoreFunction():
            return policy_gradient(logp_N=logp_N, advantage_N=credit_N, weight_N=weight_N), None
        case ImportanceRatio():
            return importance_surrogate(log_ratio_N=log_ratio_N, advantage_N=credit_N, weight_N=weight_N), None
        case ClippedRatio(low=low, high=high, dual=dual) | PreservingClip(low=low, high=high, dual=dual):
            return clipped_surrogate(
                log_ratio_N=log_ratio_N,
                advantage_N=credit_N,
                weight_N=weight_N,
                low=low,
                high=high,
                dual=dual,
                preserve=isinstance(surrogate, PreservingClip),
            )
        case CappedWeight(high=high, low=least):
            return capped_surrogate(
                logp_N=logp_N,
                log_ratio_N=log_ratio_N,
                advantage_N=credit_N,
                weight_N=weight_N,
                high=high,
                low=least,
            )
        case BandMask(low=low, high=high):
            return masked_surrogate(
                logp_N=logp_N,
                log_ratio_N=log_ratio_N,
                advantage_N=credit_N,
                weight_N=weight_N,
                low=low,
                high=high,
            )
        case _ as unreachable:
            assert_never(unreachable)


def _reference_penalty(terms: Terms, kl: KlPenalty) -> Tensor:
    if terms.reference_logp_N is None:
        raise ArgumentError("the KL penalty needs reference_logp_N; the plan holds no reference")
    kept_N = is_trained(terms.weight_N)
    estimate_N = kl_estimate(
        logp_N=torch.where(kept_N, terms.logp_N, 0.0),
        other_logp_N=torch.where(kept_N, terms.reference_logp_N, 0.0),
        estimator=kl.estimator,
    )
    return (estimate_N * terms.weight_N).sum()


@torch.no_grad()
def _ratio_stats(terms: Terms, log_ratio_N: Tensor) -> dict[str, Tensor]:
    kept_N = is_trained(terms.weight_N)
    logp_N, behaviour_N = terms.logp_N.detach()[kept_N], terms.behaviour_logp_N[kept_N]
    found = {
        "tokens": kept_N.sum(),
        "ratio_sum": log_ratio_N.detach()[kept_N].exp().sum(),
        # The tokens were sampled by the behaviour policy, so this estimates KL(behaviour || policy).
        "kl_behaviour_k3_sum": kl_estimate(logp_N=behaviour_N, other_logp_N=logp_N, estimator="k3").sum(),
    }
    if int(found["tokens"]):
        extremes = log_ratio_N.detach()[kept_N].aminmax()
        found |= {"log_ratio_min": extremes.min, "log_ratio_max": extremes.max}
    if terms.reference_logp_N is not None:
        reference_N = terms.reference_logp_N[kept_N]
        found["kl_reference_k3_sum"] = kl_estimate(logp_N=logp_N, other_logp_N=reference_N, estimator="k3").sum()
    return found
