"""How token losses become one number: weights such that a plain sum is the wanted mean.

The denominators are those of the whole batch plan, so the sum over micro-batches is the same in any split. Only trained
tokens count: observations are in no denominator. numpy only.

Axes: ``B`` trajectories of the plan, ``N`` trained tokens of one trajectory.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from kifu.errors import ArgumentError

Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMean:
    """Every trained token of the plan weighs the same: long trajectories weigh more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMean:
    """Every turn weighs the same, split over its tokens: trajectories of many turns weigh more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryMean:
    """Every trajectory weighs the same, split over its tokens: a token of a long one weighs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantNormalizer:
    """Every token weighs 1 / (B tokens) whatever the lengths (Dr. GRPO, Liu et al., 2025).

    With ``tokens=1`` the sum is the mean over trajectories of sums over tokens: the unbiased policy gradient.
    """

    tokens: float = 1.0
    """The constant, for instance the token limit of a trajectory."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tokens < float("inf"):
            raise ArgumentError(f"the constant normalizer must be finite and > 0, found {self.tokens}")


Reduction: TypeAlias = TokenMean | TurnMean | TrajectoryMean | ConstantNormalizer


def token_weights(reduction: Reduction, *, turns_BN: Sequence[npt.NDArray[Any]]) -> tuple[Doubles, ...]:
    """``[B][N]`` factor of every trained token in the summed loss.

        token mean       1 / (all trained tokens)
        turn mean        1 / (all turns with a trained token * tokens of this turn)
        trajectory mean  1 / (trajectories with a trained token * tokens of this trajectory)
        constant         1 / (all trajectories * constant)

    Args:
        reduction: which mean.
        turns_BN: for every trajectory of the plan, the turn index of each trained token; empty where nothing is
            trained. Tokens of one turn need not be neighbours.
    """
    lengths_B = np.array([len(turns) for turns in turns_BN], dtype=np.int64)
    match reduction:
        case TokenMean():
            total = int(lengths_B.sum())
            return tuple(np.full(length, 1.0 / max(total, 1)) for length in lengths_B)
        case TrajectoryMean():
            count = int((lengths_B > 0).sum())
            return tuple(np.full(length, 1.0 / (count * length) if length else 0.0) for length in lengths_B)
        case ConstantNormalizer(tokens=tokens):
            return tuple(np.full(length, 1.0 / (len(lengths_B) * tokens)) for length in lengths_B)
        case TurnMean():
            sizes_BN = [_tokens_of_turn(np.asarray(turns)) for turns in turns_BN]
            count = sum(len(np.unique(np.asarray(turns))) for turns in turns_BN)
            return tuple(1.0 / (max(count, 1) * sizes_N) for sizes_N in sizes_BN)
        case _ as unreachable:
            assert_never(unreachable)


def unit_of(reduction: Reduction) -> str:
    """The statistical unit, for reports: what counts as one example."""
    match reduction:
        case TokenMean():
            return "token"
        case TurnMean():
            return "turn"
        case TrajectoryMean():
            return "trajectory"
        case ConstantNormalizer(tokens=tokens):
            return f"trajectory, token losses divided by the constant {tokens:g}"
        case _ as unreachable:
            assert_never(unreachable)


def weight_by(
    labels_B: Sequence[Hashable], *, weights_BN: Sequence[Doubles], advantages_BN: Sequence[Doubles] | None = None
) -> Mapping[Hashable, float]:
    """Total gradient weight of the trajectories that share a label (a length, a number of turns or of tool calls).

        sum over their tokens of w, or of |w A| with advantages

    It shows an incentive that the denominator makes: whether being long, or calling often, changes how much a
    trajectory pulls.
    """
    parts: dict[Hashable, list[float]] = {}
    for at, label in enumerate(labels_B):
        advantages_N = 1.0 if advantages_BN is None else advantages_BN[at]
        parts.setdefault(label, []).append(float(np.abs(weights_BN[at] * advantages_N).sum()))
    return {label: fsum(found) for label, found in parts.items()}


def _tokens_of_turn(turns_N: npt.NDArray[Any]) -> Doubles:
    _, inverse_N, counts = np.unique(turns_N, return_inverse=True, return_counts=True)
    sizes_N: Doubles = counts[inverse_N].astype(np.float64)
    return sizes_N
