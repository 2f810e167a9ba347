"""Policy-gradient surrogates and the ratio they are taken over.

An occurrence with weight 0 is padding: it takes no part in anything, and may hold any number, nan included.

Axes: ``N`` occurrences of sampled tokens, ``S`` segments (turns or sequences).
"""

from dataclasses import dataclass
from math import inf, log, log1p
from typing import Literal, TypeAlias, assert_never

import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives.contract import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatio:
    """Every token has its own ratio (PPO, GRPO, DAPO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRatio:
    """All tokens of a turn share one ratio."""

    aggregation: Literal["product", "geometric"] = "product"
    """``product``: exp of the summed log-ratios, the true ratio of the turn. ``geometric``: exp of their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRatio:
    """All tokens of a trajectory share one ratio."""

    aggregation: Literal["product", "geometric"] = "geometric"
    """``geometric`` is GSPO's length-normalized ratio (Zheng et al., 2025); ``product`` the true one."""


RatioLevel: TypeAlias = TokenRatio | TurnRatio | SequenceRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFunction:
    """No ratio: the gradient is that of ``A log pi``, right only on fresh data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceRatio:
    """The ratio without a bound: unbiased off-policy at the ``product`` levels, with a variance nothing limits."""

    level: RatioLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedRatio:
    """PPO's pessimistic bound. It does not bound how far the policy moves; the realised ratio is measured instead."""

    level: RatioLevel
    low: float = 0.2
    """The lower bound is 1 - low."""
    high: float = 0.2
    """The upper bound is 1 + high; DAPO sets it apart from the lower one."""
    dual: float | None = None
    """Largest ratio that counts where the advantage is negative (Ye et al., 2020), > 1."""

    def __post_init__(self) -> None:
        if not (self.low >= 0.0 and self.high >= 0.0):
            raise ArgumentError(f"clip distances must be >= 0, found low {self.low} and high {self.high}")
        if self.dual is not None and not self.dual > 1.0:
            raise ArgumentError(f"the dual clip bounds a ratio and must be > 1, found {self.dual}")


Surrogate: TypeAlias = ScoreFunction | ImportanceRatio | ClippedRatio


def is_trained(weight_N: Tensor) -> Tensor:
    """``[N]`` bool: everything but padding."""
    return weight_N != 0


def segment_log_ratio(terms: Terms, level: RatioLevel) -> Tensor:
    """``[N]`` log-ratio of the segment each token belongs to; 0 at padding.

        token: log pi(y_n) - log mu(y_n)     turn, sequence: their sum (product) or mean (geometric) over the segment

    All tokens of a segment must stand in the same micro-batch.
    """
    trained_N = is_trained(terms.weight_N)
    token_N = torch.where(
        trained_N, torch.where(trained_N, terms.logp_N, 0.0) - torch.where(trained_N, terms.behaviour_logp_N, 0.0), 0.0
    )
    match level:
        case TokenRatio():
            return token_N
        case TurnRatio(aggregation=aggregation):
            segment_N = terms.turn_N
        case SequenceRatio(aggregation=aggregation):
            segment_N = terms.sequence_N
        case _ as unreachable:
            assert_never(unreachable)
    if not token_N.numel():
        return token_N
    count = int(segment_N.max()) + 1
    found_S = token_N.new_zeros(count).index_add(0, segment_N, token_N)
    if aggregation == "geometric":
        length_S = token_N.new_zeros(count).index_add(0, segment_N, trained_N.to(token_N.dtype))
        found_S = found_S / length_S.clamp(min=1.0)
    return torch.where(trained_N, found_S[segment_N], 0.0)


def policy_gradient(*, logp_N: Tensor, advantage_N: Tensor, weight_N: Tensor) -> Tensor:
    """``L = - sum_n w_n A_n log pi(y_n)``; its gradient is REINFORCE's (Williams, 1992), its value means nothing.

    Args:
        logp_N: nats, carries the gradient.
        advantage_N: credit of each token, no gradient.
        weight_N: 1 over the global denominator; 0 is padding.
    """
    factor_N = torch.where(is_trained(weight_N), advantage_N, 0.0) * weight_N
    return -(torch.where(factor_N != 0, logp_N, 0.0) * factor_N).sum()


def importance_surrogate(*, log_ratio_N: Tensor, advantage_N: Tensor, weight_N: Tensor) -> Tensor:
    """``L = - sum_n w_n rho_n A_n`` with ``rho_n = exp(log_ratio_n)``."""
    factor_N = torch.where(is_trained(weight_N), advantage_N, 0.0) * weight_N
    ratio_N = torch.where(factor_N != 0, log_ratio_N, 0.0).exp()
    return -(ratio_N * factor_N).sum()


def clipped_surrogate(
    *,
    log_ratio_N: Tensor,
    advantage_N: Tensor,
    weight_N: Tensor,
    low: float,
    high: float,
    dual: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate with separate bounds.

        L = - sum_n w_n min(rho_n A_n, clip(rho_n, 1 - low, 1 + high) A_n)
        with a dual bound c, where A_n < 0: max(that minimum, c A_n)

    Schulman et al., 2017; separate bounds from Yu et al., 2025 (DAPO); dual bound from Ye et al., 2020. Where a bound
    holds, the gradient is exactly 0, even when the ratio overflows.

    Args:
        log_ratio_N: log of rho, of the token or of its segment; carries the gradient.
        advantage_N: credit of each token, no gradient.
        weight_N: 1 over the global denominator; 0 is padding.
        low: distance of the lower bound below 1.
        high: distance of the upper bound above 1.
        dual: largest ratio that counts where the advantage is negative; None means no such bound.

    Returns:
        The summed loss and ``[N]`` bool, True where a bound holds.
    """
    advantage_N = torch.where(is_trained(weight_N), advantage_N, 0.0)
    gains_N, loses_N = advantage_N > 0, advantage_N < 0
    with torch.no_grad():
        above_N = gains_N & (log_ratio_N > log1p(high))
        below_N = loses_N & (log_ratio_N < (log1p(-low) if low < 1.0 else -inf))
        far_N = loses_N & (log_ratio_N > (log(dual) if dual is not None else inf))
        bound_N = above_N | below_N | far_N
        fixed_N = torch.full_like(log_ratio_N, 1.0 - low).masked_fill(above_N, 1.0 + high)
        if dual is not None:
            fixed_N = fixed_N.masked_fill(far_N, dual)
    free_N = (gains_N | loses_N) & ~bound_N
    ratio_N = torch.where(free_N, log_ratio_N, 0.0).exp()
    gain_N = torch.where(bound_N, fixed_N, ratio_N) * advantage_N
    return -(gain_N * weight_N).sum(), bound_N
