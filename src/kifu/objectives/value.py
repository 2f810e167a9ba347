"""Regression of the critic.

Axes: ``K`` values.
"""

import torch
from torch import Tensor

from kifu.objectives.contract import ValueTerms


def value_loss(values: ValueTerms, *, clip: float | None = None) -> Tensor:
    """``L = sum_k w_k (V_k - y_k)^2 / 2``, optionally PPO's pessimistic form.

        clipped: sum_k w_k max((V - y)^2, (V_old + clip(V - V_old, -c, c) - y)^2) / 2

    A value with weight 0 is padding and may hold any number.

    Args:
        values: V with its gradient, targets y, V as recorded when sampling, weights.
        clip: c, how far V may move from the recorded one; None does not clip.
    """
    kept_K = values.weight_K != 0
    value_K, target_K = torch.where(kept_K, values.value_K, 0.0), torch.where(kept_K, values.target_K, 0.0)
    error_K = (value_K - target_K).square()
    if clip is not None:
        old_K = torch.where(kept_K, values.old_value_K, 0.0)
        near_K = old_K + (value_K - old_K).clamp(-clip, clip)
        error_K = torch.maximum(error_K, (near_K - target_K).square())
    return (error_K * values.weight_K).sum() / 2
