"""Entropy of token distributions.

Axes: ``N`` occurrences or rows, ``V`` vocabulary.
"""

import torch
from torch import Tensor


def entropy_of(logp_NV: Tensor) -> Tensor:
    """``[N]`` nats: ``H = - sum_v p_v log p_v``; tokens outside the support (log p = -inf) add nothing, not nan."""
    finite_NV = torch.where(logp_NV == -torch.inf, 0.0, logp_NV)
    return -(logp_NV.exp() * finite_NV).sum(-1)


def entropy_bonus(*, entropy_N: Tensor, weight_N: Tensor) -> Tensor:
    """``L = - sum_n w_n H_n``: minimizing it raises the entropy. An occurrence with weight 0 is padding."""
    return -(torch.where(weight_N != 0, entropy_N, 0.0) * weight_N).sum()
