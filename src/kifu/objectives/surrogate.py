"""Policy-gradient surrogates: what is made of a ratio and an advantage.

An occurrence with weight 0 is padding: it takes no part in anything, and may hold any number, nan included.

Axes: ``N`` occurrences of sampled tokens.
"""

from dataclasses import dataclass
from math import inf, log, log1p
from typing import TypeAlias, assert_never

import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives.ratio import RatioLevel, TokenRatio, is_trained
from kifu.objectives.weighted import BandMask, CappedWeight, check_bounds


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
        check_bounds(self.low, self.high)
        if self.dual is not None and not self.dual > 1.0:
            raise ArgumentError(f"the dual clip bounds a ratio and must be > 1, found {self.dual}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreservingClip:
    """PPO's bound, except that a gaining token above it keeps its gradient (entropy-balanced clip of AEPO).

    Nothing stops a token above the bound from being pushed further.
    """

    level: RatioLevel
    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        ClippedRatio(level=self.level, low=self.low, high=self.high, dual=self.dual)


Surrogate: TypeAlias = ScoreFunction | ImportanceRatio | ClippedRatio | PreservingClip | CappedWeight | BandMask


def level_of(surrogate: Surrogate) -> RatioLevel:
    """Where the ratio is taken; a surrogate without one is measured per token."""
    match surrogate:
        case ScoreFunction():
            return TokenRatio()
        case (
            ImportanceRatio(level=level)
            | ClippedRatio(level=level)
            | PreservingClip(level=level)
            | CappedWeight(level=level)
            | BandMask(level=level)
        ):
            return level
        case _ as unreachable:
            assert_never(unreachable)


def extreme_rule(surrogate: Surrogate) -> str:
    """What happens to a ratio far from 1, for protocols and reports."""
    match surrogate:
        case ScoreFunction():
            return "none: no ratio enters the loss"
        case ImportanceRatio():
            return "none: every ratio counts in full"
        case ClippedRatio(low=low, high=high, dual=dual):
            return f"no gradient above {1 + high:g} for gains, below {1 - low:g} for losses{_dual_rule(dual)}"
        case PreservingClip(low=low, high=high, dual=dual):
            return (
                f"value held at {1 + high:g} with its gradient for gains, no gradient below {1 - low:g} for losses"
                f"{_dual_rule(dual)}"
            )
        case CappedWeight(low=low, high=high):
            below = "no lower cap" if low is None else f"raised to {1 - low:g}"
            return f"the weight of log pi is capped at {1 + high:g}, {below}; every token keeps a gradient"
        case BandMask(low=low, high=high):
            return f"no gradient outside ({1 - low:g}, {1 + high:g}), whatever the sign of the advantage"
        case _ as unreachable:
            assert_never(unreachable)


def _dual_rule(dual: float | None) -> str:
    return "" if dual is None else f", nor above {dual:g} for losses"


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
    preserve: bool = False,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate with separate bounds.

        L = - sum_n w_n min(rho_n A_n, clip(rho_n, 1 - low, 1 + high) A_n)
        with a dual bound c, where A_n < 0: max(that minimum, c A_n)
        preserving: the upper bound is (1 + high) rho_n / sg(rho_n)

    Schulman et al., 2017; separate bounds from Yu et al., 2025 (DAPO); dual bound from Ye et al., 2020; the preserving
    bound from AEPO. Where a bound holds, the gradient is exactly 0, even when the ratio overflows; where the
    preserving one holds, it is that of ``(1 + high) A log rho``.

    Args:
        log_ratio_N: log of rho, of the token or of its segment; carries the gradient.
        advantage_N: credit of each token, no gradient.
        weight_N: 1 over the global denominator; 0 is padding.
        low: distance of the lower bound below 1.
        high: distance of the upper bound above 1.
        dual: largest ratio that counts where the advantage is negative; None means no such bound.
        preserve: whether the upper bound keeps its gradient.

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
    kept_N = torch.where(bound_N, fixed_N, ratio_N)
    if preserve:
        own_N = torch.where(above_N, log_ratio_N, 0.0)
        kept_N = torch.where(above_N, fixed_N * (1.0 + own_N - own_N.detach()), kept_N)
    return -(kept_N * advantage_N * weight_N).sum(), bound_N
