"""The ratio of the policy to the one that sampled, at the level of a token, a turn or a trajectory.

An occurrence with weight 0 is padding: it takes no part in anything, and may hold any number, nan included.

Axes: ``N`` occurrences of sampled tokens, ``S`` segments (turns or sequences).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

import torch
from torch import Tensor

from kifu.objectives.contract import Terms

Carrier: TypeAlias = Literal["segment", "token"]
"""Through what a shared ratio is differentiated: ``segment``, the ratio itself, so every token's term moves all tokens
of the segment; ``token``, ``log pi - sg(log pi) + sg(log rho)`` (GSPO-token, Zheng et al., 2025), so it moves its own
token alone. The values are equal. The gradients are equal at a geometric level when all tokens of the segment have the
same weight and advantage; otherwise ``segment`` spreads their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatio:
    """Every token has its own ratio (PPO, GRPO, DAPO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRatio:
    """All tokens of a turn share one ratio."""

    aggregation: Literal["product", "geometric"] = "product"
    """``product``: exp of the summed log-ratios, the true ratio of the turn. ``geometric``: exp of their mean."""
    gradient: Carrier = "segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRatio:
    """All tokens of a trajectory share one ratio."""

    aggregation: Literal["product", "geometric"] = "geometric"
    """``geometric`` is GSPO's length-normalized ratio (Zheng et al., 2025); ``product`` the true one."""
    gradient: Carrier = "segment"


RatioLevel: TypeAlias = TokenRatio | TurnRatio | SequenceRatio


def is_trained(weight_N: Tensor) -> Tensor:
    """``[N]`` bool: everything but padding."""
    return weight_N != 0


def segment_log_ratio(terms: Terms, level: RatioLevel) -> Tensor:
    """``[N]`` log-ratio of the segment each token belongs to; 0 at padding.

        token: log pi(y_n) - log mu(y_n)     turn, sequence: their sum (product) or mean (geometric) over the segment

    The gradient is that of this number, or the token's own where the level says so (`Carrier`). All tokens of a segment
    must stand in the same micro-batch.
    """
    trained_N = is_trained(terms.weight_N)
    token_N = torch.where(
        trained_N, torch.where(trained_N, terms.logp_N, 0.0) - torch.where(trained_N, terms.behaviour_logp_N, 0.0), 0.0
    )
    match level:
        case TokenRatio():
            return token_N
        case TurnRatio(aggregation=aggregation, gradient=gradient):
            segment_N = terms.turn_N
        case SequenceRatio(aggregation=aggregation, gradient=gradient):
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
    shared_N = torch.where(trained_N, found_S[segment_N], 0.0)
    return shared_N if gradient == "segment" else token_N - token_N.detach() + shared_N.detach()


def level_name(level: RatioLevel) -> str:
    """Where a ratio is taken and how its logs are put together, for protocols and reports."""
    match level:
        case TokenRatio():
            return "token"
        case TurnRatio(aggregation=aggregation, gradient=gradient):
            unit = "turn"
        case SequenceRatio(aggregation=aggregation, gradient=gradient):
            unit = "trajectory"
        case _ as unreachable:
            assert_never(unreachable)
    carried = "" if gradient == "segment" else ", differentiated token by token"
    return f"{unit}, {'product' if aggregation == 'product' else 'geometric mean'} over its tokens{carried}"
