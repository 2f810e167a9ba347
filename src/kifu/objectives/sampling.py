"""From logits to the distribution that is really sampled from.

Axes: ``N`` rows, ``V`` vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.records import Support, SupportKind, as_ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogDistribution:
    """A processed distribution."""

    logp_NV: Tensor
    """Nats, normalized over the kept set; -inf outside it."""
    kept_NV: Tensor
    """Bool: the tokens that can be sampled."""


def log_distribution(
    logits_NV: Tensor,
    *,
    temperature: float = 1.0,
    allowed_NV: Tensor | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> LogDistribution:
    """Transform and truncate logits, always in this order, and normalize over what is kept.

        1. constraint    only allowed tokens
        2. temperature   logits / T, the maximum subtracted first
        3. top_k         the k most likely; of equals, the lower id
        4. top_p         the shortest run of the most likely whose mass reaches p; of equals, the lower id
        5. min_p         at least min_p times the mass of the most likely

    Each of 3 to 5 looks at the distribution that the steps before it left. At least one token is always kept.

    Args:
        logits_NV: raw scores, in the precision to compute in (at least float32).
        temperature: finite and > 0. A greedy sampler takes the argmax of temperature 1.
        allowed_NV: bool, the constraint of each row; None allows everything.
        top_k: at least 1; None means no limit.
        top_p: in (0, 1]; None means no limit.
        min_p: in [0, 1); None means no limit.

    Raises:
        ArgumentError: a setting outside its domain, a row without an allowed token, or logits that are not numbers.
    """
    _check_settings(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scaled_NV = _scaled(logits_NV, temperature, allowed_NV)
    kept_NV = scaled_NV > -torch.inf if allowed_NV is None else allowed_NV
    if top_k is not None or top_p is not None:
        kept_NV = _most_likely(scaled_NV, kept_NV, top_k=top_k, top_p=top_p)
    if min_p is not None and min_p > 0.0:
        kept_NV = kept_NV & (scaled_NV >= float(np.log(min_p)))
    logp_NV = scaled_NV.masked_fill(~kept_NV, -torch.inf).log_softmax(-1)
    return LogDistribution(logp_NV=logp_NV, kept_NV=kept_NV)


def support_of(kept_V: Tensor) -> Support | None:
    """Write a kept set down as the smaller of the kept and the excluded ids; None when everything is kept."""
    kept = kept_V.detach().cpu().numpy().astype(np.bool_)
    count = int(kept.sum())
    if count == kept.size:
        return None
    if 2 * count <= kept.size:
        return Support(kind=SupportKind.IDS, ids=as_ints(np.flatnonzero(kept)))
    return Support(kind=SupportKind.NOT_IDS, ids=as_ints(np.flatnonzero(~kept)))


def _check_settings(temperature: float, *, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    if not 0.0 < temperature < float("inf"):
        raise ArgumentError(f"temperature must be finite and > 0, found {temperature}; greedy takes the argmax instead")
    if top_k is not None and top_k < 1:
        raise ArgumentError(f"top_k must be at least 1, found {top_k}; None means no limit")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ArgumentError(f"top_p must lie in (0, 1], found {top_p}; None means no limit")
    if min_p is not None and not 0.0 <= min_p < 1.0:
        raise ArgumentError(f"min_p must lie in [0, 1), found {min_p}; None means no limit")


def _scaled(logits_NV: Tensor, temperature: float, allowed_NV: Tensor | None) -> Tensor:
    """Logits minus the row's allowed maximum, over the temperature; -inf where not allowed. The largest is 0."""
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if allowed_NV is not None:
        wide_NV = wide_NV.masked_fill(~allowed_NV, -torch.inf)
    highest_N = wide_NV.amax(-1, keepdim=True)
    if not bool(torch.isfinite(highest_N).all()):
        row = int(torch.nonzero(~torch.isfinite(highest_N[..., 0]))[0])
        raise ArgumentError(
            f"row {row}: the largest allowed logit is {float(highest_N[row])}. "
            "A row needs at least one allowed token, and logits must be numbers."
        )
    return (wide_NV - highest_N) / temperature


def _most_likely(scaled_NV: Tensor, kept_NV: Tensor, *, top_k: int | None, top_p: float | None) -> Tensor:
    sorted_NV, order_NV = scaled_NV.masked_fill(~kept_NV, -torch.inf).sort(dim=-1, descending=True, stable=True)
    chosen_NV = sorted_NV > -torch.inf
    if top_k is not None:
        chosen_NV[:, top_k:] = False
    if top_p is not None and top_p < 1.0:
        mass_NV = sorted_NV.masked_fill(~chosen_NV, -torch.inf).softmax(-1)
        chosen_NV &= (mass_NV.cumsum(-1) - mass_NV) < top_p
        chosen_NV[:, 0] = True
    return torch.zeros_like(chosen_NV).scatter(-1, order_NV, chosen_NV)
