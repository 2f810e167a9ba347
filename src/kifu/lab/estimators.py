"""Expected values of policy-gradient estimators, by enumeration, with the credit functions the library trains with.

The exact gradient is taken another way than the estimators: J is a polynomial in the policy's probabilities, and its
derivative is read off a complex step, without a score function.

Axes: ``R`` information states, ``A`` actions, ``P`` paths, ``T`` decisions, ``G`` members of a group.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any, Literal, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from kifu.credit import Doubles, Episode, Scale, discounted_sum, gae, group_relative, leave_one_out
from kifu.errors import ArgumentError
from kifu.lab.enumeration import Path, PathTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """(G_0 - baseline) times the sum of scores."""

    baseline: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """Return minus the mean return of the other members of the group."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGae:
    """GAE over turns with the exact value of every history as critic."""

    lam: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRelative:
    """Return relative to the group, as GRPO takes it."""

    size: int
    scale: Scale
    length: Literal["sum", "mean"] = "sum"
    """``mean`` divides each member's scores by its number of decisions, as a trajectory mean does."""


Estimator: TypeAlias = Reinforce | LeaveOneOut | TurnGae | GroupRelative


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """How the mean of an estimator differs from the gradient."""

    relative_error: float
    """Norm of the difference over the norm of the gradient."""
    cosine: float
    """Cosine of the angle between them: 1 when only the length differs."""
    scale: float
    """Length of the mean over the length of the gradient."""


def policy_rows(table: PathTable, logits_RA: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``[R, A]`` softmax over the allowed actions of each information state; complex logits pass through."""
    if logits_RA.shape != table.allowed_RA.shape:
        raise ArgumentError(f"logits of shape {logits_RA.shape} for a policy of shape {table.allowed_RA.shape}")
    highest_R = np.where(table.allowed_RA, logits_RA.real, -np.inf).max(axis=1, keepdims=True)
    weight_RA = np.where(table.allowed_RA, np.exp(logits_RA - highest_R), 0.0)
    rows_RA: npt.NDArray[Any] = weight_RA / weight_RA.sum(axis=1, keepdims=True)
    return rows_RA


def path_probabilities(table: PathTable, logits_RA: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``[P]`` world factor times policy factor; they sum to 1."""
    rows_RA = policy_rows(table, logits_RA)
    return np.array(
        [path.world_factor * rows_RA[list(path.rows_T), list(path.actions_T)].prod() for path in table.paths]
    )


def expected_return(table: PathTable, logits_RA: Doubles, *, gamma: float) -> float:
    """``J = sum_p p(path) G_0(path)``."""
    return float(np.sum(path_probabilities(table, logits_RA) * _returns(table, gamma)))


def exact_gradient(table: PathTable, logits_RA: Doubles, *, gamma: float) -> Doubles:
    """``[R, A]`` dJ/dlogits by a complex step of 1e-30: exact to rounding."""
    returns_P = _returns(table, gamma)
    gradient_RA = np.zeros_like(logits_RA)
    for at in np.ndindex(*logits_RA.shape):
        if table.allowed_RA[at]:
            moved_RA = logits_RA.astype(np.complex128)
            moved_RA[at] += 1e-30j
            gradient_RA[at] = float(np.sum(path_probabilities(table, moved_RA) * returns_P).imag / 1e-30)
    return gradient_RA


def exact_values(table: PathTable, logits_RA: Doubles, *, gamma: float) -> Doubles:
    """``[nodes]`` V(h): mean return from each history on, under this policy and its step limit."""
    probability_P = path_probabilities(table, logits_RA)
    mass, total = np.zeros(table.num_nodes), np.zeros(table.num_nodes)
    for path, probability in zip(table.paths, probability_P, strict=True):
        following = 0.0
        for node, reward in zip(reversed(path.nodes_T), reversed(path.rewards_T), strict=True):
            following = reward + gamma * following
            mass[node] += probability
            total[node] += probability * following
    values: Doubles = np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)
    return values


def estimator_mean(table: PathTable, logits_RA: Doubles, estimator: Estimator, *, gamma: float) -> Doubles:
    """``[R, A]`` expectation of the estimator's gradient over everything that can be sampled.

    Decision t counts with gamma^t where credit is per decision, as the derivative of the discounted J demands. Members
    of a group are exchangeable, so the mean over a group is that of its first member, and only the multiset of the
    others' returns matters.
    """
    probability_P = path_probabilities(table, logits_RA)
    rows_RA = policy_rows(table, logits_RA)
    credit_PT = _credit(table, logits_RA, estimator, gamma=gamma)
    mean_RA = np.zeros_like(logits_RA)
    for path, probability, credit_T in zip(table.paths, probability_P, credit_PT, strict=True):
        for row, action, credit in zip(path.rows_T, path.actions_T, credit_T, strict=True):
            mean_RA[row] -= probability * credit * rows_RA[row]
            mean_RA[row, action] += probability * credit
    return mean_RA


def bias(mean_RA: Doubles, gradient_RA: Doubles) -> Bias:
    """Compare an estimator's mean with the gradient."""
    length, mean_length = float(np.linalg.norm(gradient_RA)), float(np.linalg.norm(mean_RA))
    if length == 0.0:
        raise ArgumentError("the gradient is 0 here; choose other logits to compare an estimator with it")
    along = float(np.sum(mean_RA * gradient_RA))
    return Bias(
        relative_error=float(np.linalg.norm(mean_RA - gradient_RA)) / length,
        cosine=along / (length * mean_length) if mean_length else 0.0,
        scale=mean_length / length,
    )


def _credit(table: PathTable, logits_RA: Doubles, estimator: Estimator, *, gamma: float) -> list[Doubles]:
    """``[P][T]`` expected credit of every decision, given the path it is on."""
    returns_P = _returns(table, gamma)
    match estimator:
        case Reinforce(baseline=baseline):
            return [np.full(len(p.rows_T), g - baseline) for p, g in zip(table.paths, returns_P, strict=True)]
        case TurnGae(lam=lam):
            values = exact_values(table, logits_RA, gamma=gamma)
            return [_turn_credit(path, values, gamma=gamma, lam=lam) for path in table.paths]
        case LeaveOneOut(size=size):
            others = _others(returns_P, path_probabilities(table, logits_RA), size=size)
            by_return = {g: sum(q * _first(leave_one_out([g, *rest])) for rest, q in others) for g in set(returns_P)}
            return [np.full(len(p.rows_T), by_return[g]) for p, g in zip(table.paths, returns_P, strict=True)]
        case GroupRelative(size=size, scale=scale, length=length):
            others = _others(returns_P, path_probabilities(table, logits_RA), size=size)
            by_return = {
                g: sum(q * _first(group_relative([g, *rest], scale=scale)) for rest, q in others)
                for g in set(returns_P)
            }
            divisors = [len(p.rows_T) if length == "mean" else 1 for p in table.paths]
            return [
                np.full(len(p.rows_T), by_return[g] / divisor)
                for p, g, divisor in zip(table.paths, returns_P, divisors, strict=True)
            ]
        case _ as unreachable:
            assert_never(unreachable)


def _turn_credit(path: Path, values: Doubles, *, gamma: float, lam: float) -> Doubles:
    episode = Episode(rewards_K=np.array(path.rewards_T), values_K=values[list(path.nodes_T)], terminated=True)
    credit_T: Doubles = gae(episode, gamma=gamma, lam=lam) * gamma ** np.arange(len(path.rewards_T))
    return credit_T


def _others(returns_P: Doubles, probability_P: Doubles, *, size: int) -> list[tuple[tuple[float, ...], float]]:
    """Multisets of the other members' returns with their probabilities."""
    mass: dict[float, float] = {}
    for value, probability in zip(returns_P, probability_P, strict=True):
        mass[float(value)] = mass.get(float(value), 0.0) + float(probability)
    return list(_multisets(mass, size - 1))


def _multisets(mass: dict[float, float], count: int) -> Iterator[tuple[tuple[float, ...], float]]:
    for chosen in combinations_with_replacement(sorted(mass), count):
        repeats = Counter(chosen)
        ways = factorial(count) // prod(factorial(n) for n in repeats.values())
        yield chosen, ways * prod(mass[value] ** n for value, n in repeats.items())


def _first(advantages: Sequence[float | None]) -> float:
    assert advantages[0] is not None
    return advantages[0]


def _returns(table: PathTable, gamma: float) -> Doubles:
    returns_P: Doubles = np.array([discounted_sum(path.rewards_T, gamma=gamma) for path in table.paths])
    return returns_P
