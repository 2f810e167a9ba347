"""Maximum likelihood on demonstrations.

Axes: ``N`` occurrences of demonstrated tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kifu.objectives.contract import Loss, Terms


def negative_log_likelihood(*, logp_N: Tensor, weight_N: Tensor) -> Tensor:
    """``L = - sum_n w_n log pi(y_n)``; an occurrence with weight 0 is padding."""
    return -(torch.where(weight_N != 0, logp_N, 0.0) * weight_N).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodObjective:
    """Supervised fine-tuning. It looks at no advantage and no behaviour log-probability: demonstrations have none."""

    @property
    def needs_entropy(self) -> bool:
        """Never."""
        return False

    def __call__(self, terms: Terms) -> Loss:
        """Sum the negative log-likelihood."""
        kept_N = terms.weight_N != 0
        total = negative_log_likelihood(logp_N=terms.logp_N, weight_N=terms.weight_N)
        with torch.no_grad():
            stats = {
                "tokens": kept_N.sum(),
                "nll_sum": -terms.logp_N[kept_N].sum(),
                "loss_likelihood": total.detach(),
            }
        return Loss(total=total, stats=stats)
