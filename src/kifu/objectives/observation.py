"""Predicting what the environment says next: an auxiliary loss beside any other, with its own name and denominator.

Axes: ``J`` tokens of the environment.
"""

from dataclasses import dataclass

import torch

from kifu.errors import ArgumentError
from kifu.objectives.contract import Loss, Objective, Terms
from kifu.objectives.likelihood import negative_log_likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class WithObservations:
    """``L = L_inner + coefficient * sum_j w_j (- log pi(o_j))``, the weights 1 over the update's observation tokens.

    Nobody sampled these tokens: they enter no ratio, no other denominator and no statistic of the policy's own.
    """

    inner: Objective
    coefficient: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.coefficient < float("inf"):
            raise ArgumentError(f"the coefficient must be finite and > 0, found {self.coefficient}; leave the loss out")

    @property
    def needs_entropy(self) -> bool:
        """What the inner objective asks for."""
        return self.inner.needs_entropy

    def __call__(self, terms: Terms) -> Loss:
        """Add the prediction's loss to the inner one."""
        inner = self.inner(terms)
        if terms.observed is None:
            return inner
        seen = terms.observed
        kept_J = seen.weight_J != 0
        loss = self.coefficient * negative_log_likelihood(logp_N=seen.logp_J, weight_N=seen.weight_J)
        with torch.no_grad():
            stats = {
                "loss_observation": loss.detach(),
                "observation_tokens": kept_J.sum(),
                "observation_nll_sum": -seen.logp_J[kept_J].sum(),
            }
        return Loss(total=inner.total + loss, stats={**inner.stats, **stats})
