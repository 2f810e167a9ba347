"""Likelihood weighted by an exponential of the advantage: learning from records without a ratio.

Axes: ``N`` occurrences of recorded tokens.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives.contract import Loss, Terms


def exponential_weights(advantage_N: Tensor, *, temperature: float, cap: float) -> Tensor:
    """``[N]`` ``min(exp(A / temperature), cap)`` (Peng et al., 2019); never overflows."""
    return (advantage_N / temperature).clamp(max=log(cap)).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedLikelihood:
    """``L = - sum_n w_n min(exp(A_n / temperature), cap) log pi(y_n)``, the weights held fixed."""

    temperature: float = 1.0
    cap: float = 20.0

    def __post_init__(self) -> None:
        if not (0.0 < self.temperature < float("inf") and 0.0 < self.cap < float("inf")):
            raise ArgumentError(
                f"temperature and cap must be finite and > 0, found {self.temperature} and {self.cap}: a temperature "
                "towards 0 keeps the best action alone, a large one copies the behaviour"
            )

    @property
    def needs_entropy(self) -> bool:
        """Never."""
        return False

    def __call__(self, terms: Terms) -> Loss:
        """Sum the weighted negative log-likelihood."""
        kept_N = terms.weight_N != 0
        advantage_N = torch.where(kept_N, terms.advantage_N, 0.0)
        factor_N = exponential_weights(advantage_N, temperature=self.temperature, cap=self.cap)
        total = -(torch.where(kept_N, terms.logp_N, 0.0) * factor_N * terms.weight_N).sum()
        with torch.no_grad():
            stats = {
                "tokens": kept_N.sum(),
                "nll_sum": -terms.logp_N[kept_N].sum(),
                "weight_sum": factor_N[kept_N].sum(),
                "capped_tokens": (kept_N & (advantage_N / self.temperature > log(self.cap))).sum(),
                "loss_likelihood": total.detach(),
            }
        return Loss(total=total, stats=stats)
