"""Surrogates that weight ``log pi`` by a function of the ratio without a gradient through the ratio.

An occurrence with weight 0 is padding: it takes no part in anything, and may hold any number, nan included.

Axes: ``N`` occurrences of sampled tokens.
"""

from dataclasses import dataclass
from math import inf, log1p

import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives.ratio import RatioLevel, is_trained


def check_bounds(low: float, high: float) -> None:
    """Refuse bounds ``1 - low`` and ``1 + high`` that no ratio could reach.

    Raises:
        ArgumentError: a distance is negative, the lower bound is, or the upper one is no number.
    """
    if not (0.0 <= low <= 1.0 and 0.0 <= high < inf):
        raise ArgumentError(
            "a ratio is never below 0: its lower bound is 1 - low with low in [0, 1], its upper one 1 + high with a "
            f"finite high >= 0; found low {low} and high {high}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedWeight:
    """The importance weight, capped and without gradient, times ``A log pi`` (CISPO, MiniMax, 2025).

    The cap acts whatever the sign of the advantage, and a capped token keeps its gradient.
    """

    level: RatioLevel
    high: float
    """The largest weight is 1 + high."""
    low: float | None = None
    """The smallest weight is 1 - low; None leaves small weights as they are, as the paper does."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.high < inf:
            raise ArgumentError(f"the cap of a weight is 1 + high; high must be finite and >= 0, found {self.high}")
        if self.low is not None and not 0.0 <= self.low <= 1.0:
            raise ArgumentError(f"the least weight is 1 - low; low must lie in [0, 1], found {self.low}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandMask:
    """The ratio as a weight of ``A log pi`` inside a band, nothing outside it (two-sided mask of SAO)."""

    level: RatioLevel
    low: float = 0.2
    """The band begins above 1 - low."""
    high: float = 0.28
    """The band ends below 1 + high."""

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high)


def capped_surrogate(
    *,
    logp_N: Tensor,
    log_ratio_N: Tensor,
    advantage_N: Tensor,
    weight_N: Tensor,
    high: float,
    low: float | None = None,
) -> tuple[Tensor, Tensor]:
    """CISPO's loss.

        L = - sum_n w_n sg(clip(rho_n, 1 - low, 1 + high)) A_n log pi(y_n)

    MiniMax, 2025 (MiniMax-M1), eq. 4 and 5. An overflowing ratio has the capped weight.

    Args:
        logp_N: nats, carries the gradient.
        log_ratio_N: log of rho, of the token or of its segment; its gradient is not used.
        advantage_N: credit of each token, no gradient.
        weight_N: 1 over the global denominator; 0 is padding.
        high: distance of the cap above 1.
        low: distance of the lower cap below 1; None means no lower cap.

    Returns:
        The summed loss and ``[N]`` bool, True where a token with credit has a capped weight.
    """
    advantage_N = torch.where(is_trained(weight_N), advantage_N, 0.0)
    active_N = advantage_N != 0
    with torch.no_grad():
        plain_N = torch.where(active_N, log_ratio_N, 0.0).exp()
        least = 0.0 if low is None else 1.0 - low
        factor_N = plain_N.clamp(min=least, max=1.0 + high)
        capped_N = active_N & ((plain_N > 1.0 + high) | (plain_N < least))
    return _weighted_likelihood(logp_N, factor_N=factor_N * advantage_N * weight_N), capped_N


def masked_surrogate(
    *, logp_N: Tensor, log_ratio_N: Tensor, advantage_N: Tensor, weight_N: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """The loss of a two-sided mask.

        L = - sum_n w_n sg(f(rho_n)) A_n log pi(y_n),   f(rho) = rho if 1 - low < rho < 1 + high, else 0

    SAO; a masked token stays in the denominator.

    Args:
        logp_N: nats, carries the gradient.
        log_ratio_N: log of rho, of the token or of its segment; its gradient is not used.
        advantage_N: credit of each token, no gradient.
        weight_N: 1 over the global denominator; 0 is padding.
        low: distance of the band's lower end below 1.
        high: distance of its upper end above 1.

    Returns:
        The summed loss and ``[N]`` bool, True where a token with credit is masked.
    """
    advantage_N = torch.where(is_trained(weight_N), advantage_N, 0.0)
    active_N = advantage_N != 0
    with torch.no_grad():
        inside_N = (log_ratio_N > (log1p(-low) if low < 1.0 else -inf)) & (log_ratio_N < log1p(high))
        factor_N = torch.where(active_N & inside_N, log_ratio_N, -inf).exp()
    return _weighted_likelihood(logp_N, factor_N=factor_N * advantage_N * weight_N), active_N & ~inside_N


def _weighted_likelihood(logp_N: Tensor, *, factor_N: Tensor) -> Tensor:
    return -(torch.where(factor_N != 0, logp_N, 0.0) * factor_N).sum()
