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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMean:
    """Every preference pair weighs the same; its tokens have one weight each, 1 / pairs: a side's sum stays a sum."""


Reduction: TypeAlias = TokenMean | TurnMean | TrajectoryMean | ConstantNormalizer | PairMean


def token_weights(
    reduction: Reduction,
    *,
    turns_BN: Sequence[npt.NDArray[Any]],
    kept_BN: Sequence[npt.NDArray[np.bool_]] | None = None,
    copies_B: Sequence[int] | None = None,
    pairs_B: Sequence[int | None] | None = None,
) -> tuple[Doubles, ...]:
    """``[B][N]`` factor of every trained token in the summed loss.

        token mean       1 / (all trained tokens)
        turn mean        1 / (all turns with a trained token * tokens of this turn)
        trajectory mean  1 / (trajectories with a trained token * tokens of this trajectory)
        constant         1 / (all trajectories * constant)
        pair mean        1 / (pairs)

    A trajectory that stands in the batch c times has c times the factor and counts c times in every denominator.

    Args:
        reduction: which mean.
        turns_BN: for every trajectory of the plan, the turn index of each trained token; empty where nothing is
            trained. Tokens of one turn need not be neighbours.
        kept_BN: False takes a token out of the loss and out of every denominator.
        copies_B: how often each trajectory stands in the batch; None is once.
        pairs_B: number of the pair each trajectory stands in; only the mean over pairs looks at it.
    """
    copies_B = [1] * len(turns_BN) if copies_B is None else copies_B
    kept_BN = [np.ones(len(turns), dtype=np.bool_) for turns in turns_BN] if kept_BN is None else kept_BN
    inner_BN = [_one_over(reduction, np.asarray(turns), kept) for turns, kept in zip(turns_BN, kept_BN, strict=True)]
    units = (
        len(set(pairs_B or ()) - {None})
        if isinstance(reduction, PairMean)
        else sum(
            copies * _units(reduction, np.asarray(turns)[kept])
            for copies, turns, kept in zip(copies_B, turns_BN, kept_BN, strict=True)
        )
    )
    return tuple(
        np.where(kept, copies * inner / max(units, 1), 0.0)
        for copies, inner, kept in zip(copies_B, inner_BN, kept_BN, strict=True)
    )


def _units(reduction: Reduction, turns_N: npt.NDArray[Any]) -> int:
    """How many units of the mean one trajectory holds."""
    match reduction:
        case TokenMean():
            return len(turns_N)
        case TurnMean():
            return len(np.unique(turns_N))
        case TrajectoryMean():
            return int(len(turns_N) > 0)
        case ConstantNormalizer() | PairMean():
            return 1
        case _ as unreachable:
            assert_never(unreachable)


def _one_over(reduction: Reduction, turns_N: npt.NDArray[Any], kept_N: npt.NDArray[np.bool_]) -> Doubles:
    """``[N]`` share of a token in its unit."""
    match reduction:
        case TokenMean() | PairMean():
            return np.ones(len(turns_N))
        case TurnMean():
            return 1.0 / np.maximum(_tokens_of_turn(turns_N, kept_N), 1.0)
        case TrajectoryMean():
            return np.full(len(turns_N), 1.0 / max(int(kept_N.sum()), 1))
        case ConstantNormalizer(tokens=tokens):
            return np.full(len(turns_N), 1.0 / tokens)
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
        case PairMean():
            return "preference pair"
        case _ as unreachable:
            assert_never(unreachable)


def length_rule(reduction: Reduction) -> str:
    """What the length of a trajectory or turn does to the weight of its tokens, for protocols and reports."""
    match reduction:
        case TokenMean():
            return "none: every token weighs the same, long trajectories more"
        case TurnMean():
            return "by the tokens of each turn"
        case TrajectoryMean():
            return "by the tokens of each trajectory"
        case ConstantNormalizer(tokens=tokens):
            return f"none: every token weighs the same, divided by the constant {tokens:g}"
        case PairMean():
            return "none: the log-probabilities of a side are added up, long sides count more"
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


def _tokens_of_turn(turns_N: npt.NDArray[Any], kept_N: npt.NDArray[np.bool_]) -> Doubles:
    """``[N]`` kept tokens of the turn each token belongs to."""
    _, inverse_N = np.unique(turns_N, return_inverse=True)
    sizes = np.bincount(inverse_N, weights=kept_N.astype(np.float64), minlength=1).astype(np.float64)
    return sizes[inverse_N]
