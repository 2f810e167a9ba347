"""From the episodes of one update to the advantage and the weight of every trained token, whoever recorded them.

Pure: the same episodes and rules give the same numbers. Axes: ``N`` trained tokens of one trajectory.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kifu.algorithms import Algorithm, TurnCredit
from kifu.batching import Doubles
from kifu.credit.episode import Episode
from kifu.credit.group import Scale
from kifu.credit.outcome import batch_moments
from kifu.credit.reading import RewardRules
from kifu.credit.selection import copies_of_groups
from kifu.errors import UsageError
from kifu.objectives import Reduction, token_weights
from kifu.records import Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """A trajectory that may be trained."""

    episode: Episode
    turns_N: npt.NDArray[np.int64]
    """Turn of every token that may be trained, tape after tape."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credited:
    """A trajectory with its credit."""

    credit: TurnCredit
    """After the selection of groups and whitening, where there is one."""
    advantages_N: Doubles
    weights_N: Doubles
    """Factor in the summed loss; 0 takes the token out."""

    @property
    def left_out(self) -> str | None:
        """Why no token of it is trained; None where one is."""
        if self.weights_N.any():
            return None
        if not self.weights_N.size:
            return "it holds no token that could be trained"
        return self.credit.left_out or "the method keeps none of its turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the whole update, never over a micro-batch."""

    tokens: int
    turns: int
    trajectories: int
    observed: int = 0
    """Tokens of the environment that are predicted, where the update does that."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CreditedGroup:
    """What the algorithm says about one group."""

    is_informative: bool
    """False when the group carries no signal: it is left out."""
    copies: int
    """How often the group stands in the update; 0 when it is left out."""
    members: tuple[Credited, ...]
    """In order; empty unless the group is trained."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CreditedUpdate:
    """One update."""

    groups: tuple[CreditedGroup, ...]
    denominators: Denominators


def credit_groups(
    groups: Sequence[Sequence[Member]],
    *,
    algorithm: Algorithm,
    rules: RewardRules,
    seed: int,
    whiten: bool | None = None,
) -> CreditedUpdate:
    """Credit every group, select among them, whiten, and weigh every token.

    Args:
        groups: for every group of the update its usable members.
        algorithm: gives the credit, the selection of groups and the reduction.
        rules: how rewards become numbers.
        seed: of a selection that draws.
        whiten: whether advantages are normalized over the update; None leaves it to the algorithm.

    Raises:
        UsageError: the algorithm's credit does not fit the episodes it was asked about.
    """
    found = [_credit(algorithm, [member.episode for member in group], rules) if group else None for group in groups]
    outcomes = [
        None if credits is None else [member.episode.outcome for member in group]
        for group, credits in zip(groups, found, strict=True)
    ]
    copies = copies_of_groups(algorithm.plan.selection, rewards=outcomes, seed=seed)
    pairs = [
        (member, replace(credit, copies=credit.copies * times))
        for group, credits, times in zip(groups, _numbered(found), copies, strict=True)
        if credits is not None and times > 0
        for member, credit in zip(group, credits, strict=True)
    ]
    if algorithm.plan.whiten if whiten is None else whiten:
        pairs = _whitened(pairs, scale=algorithm.plan.whitening)
        if not algorithm.plan.needs_value and not any(_is_felt(member, credit) for member, credit in pairs):
            found, copies, pairs = [None for _ in groups], tuple(0 for _ in groups), []
    credited, denominators = _weighted(pairs, algorithm.reduction)
    places = iter(credited)
    return CreditedUpdate(
        groups=tuple(
            CreditedGroup(
                is_informative=credits is not None,
                copies=times,
                members=tuple(next(places) for _ in group) if credits is not None and times > 0 else (),
            )
            for group, credits, times in zip(groups, found, copies, strict=True)
        ),
        denominators=denominators,
    )


def _credit(algorithm: Algorithm, episodes: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
    """Credit for every episode and every turn of it, or none: what is one too many would be dropped in silence."""
    credits, name = algorithm.credit(episodes, rules), type(algorithm).__name__
    if credits is None:
        return None
    if len(credits) != len(episodes):
        raise UsageError(
            f"`{name}.credit` gave {len(credits)} credits for {len(episodes)} episodes; one each, in order"
        )
    for episode, credit in zip(episodes, credits, strict=True):
        of_turns: dict[str, Sized | None] = {
            "advantages_K": credit.advantages_K,
            "token_advantages_K": credit.token_advantages_K,
            "kept_K": credit.kept_K,
            "value_targets_K": credit.value_targets_K,
        }
        for field, given in of_turns.items():
            if given is not None and len(given) != episode.num_turns:
                raise UsageError(
                    f"`{name}.credit`, {episode.place()}: `{field}` has {len(given)} entries for {episode.num_turns} "
                    "turns; one each"
                )
    return credits


def _numbered(found: Sequence[list[TurnCredit] | None]) -> list[list[TurnCredit] | None]:
    """Preference pairs numbered through the update instead of within their group."""
    numbers: dict[tuple[int, int], int] = {}
    return [
        None
        if credits is None
        else [
            credit
            if credit.pair is None
            else replace(credit, pair=numbers.setdefault((group, credit.pair), len(numbers)))
            for credit in credits
        ]
        for group, credits in enumerate(found)
    ]


def token_advantages(credit: TurnCredit, turns_N: npt.NDArray[np.int64]) -> Doubles:
    """``[N]`` advantage of every token, given the turn it belongs to."""
    found_N = np.empty(turns_N.size, dtype=np.float64)
    for turn in np.unique(turns_N):
        at_N = turns_N == turn
        found_N[at_N] = credit.tokens(int(turn), int(at_N.sum()))
    return found_N


def _is_felt(member: Member, credit: TurnCredit) -> bool:
    """Whether any trained token of a trajectory has an advantage."""
    return bool((token_advantages(credit, member.turns_N) * _kept(credit, member.turns_N)).any())


def _whitened(pairs: list[tuple[Member, TurnCredit]], *, scale: Scale) -> list[tuple[Member, TurnCredit]]:
    """Normalize advantages over all trained tokens of the update, copies counted: (A - mean) / divisor."""
    if not pairs:
        return pairs
    mean, std = batch_moments(
        np.concatenate([token_advantages(credit, member.turns_N) for member, credit in pairs]),
        counts_N=np.concatenate([credit.copies * _kept(credit, member.turns_N) for member, credit in pairs]),
        scale=scale,
    )
    return [
        (
            member,
            replace(
                credit,
                advantages_K=(credit.advantages_K - mean) / std,
                token_advantages_K=None
                if credit.token_advantages_K is None
                else tuple((found - mean) / std for found in credit.token_advantages_K),
            ),
        )
        for member, credit in pairs
    ]


def _kept(credit: TurnCredit, turns_N: npt.NDArray[np.int64]) -> Bools:
    return np.array([credit.keeps(int(turn)) for turn in turns_N], dtype=np.bool_)


def _weighted(pairs: list[tuple[Member, TurnCredit]], reduction: Reduction) -> tuple[list[Credited], Denominators]:
    turns_BN = [member.turns_N for member, _ in pairs]
    kept_BN = [_kept(credit, member.turns_N) for member, credit in pairs]
    copies_B = [credit.copies for _, credit in pairs]
    weights_BN = token_weights(
        reduction,
        turns_BN=turns_BN,
        kept_BN=kept_BN,
        copies_B=copies_B,
        pairs_B=[credit.pair for _, credit in pairs],
    )
    trained_BN = [turns[kept] for turns, kept in zip(turns_BN, kept_BN, strict=True)]
    credited = [
        Credited(credit=credit, advantages_N=token_advantages(credit, member.turns_N), weights_N=weights_N)
        for (member, credit), weights_N in zip(pairs, weights_BN, strict=True)
    ]
    return credited, Denominators(
        tokens=sum(copies * turns.size for copies, turns in zip(copies_B, trained_BN, strict=True)),
        turns=sum(copies * np.unique(turns).size for copies, turns in zip(copies_B, trained_BN, strict=True)),
        trajectories=sum(copies for copies, turns in zip(copies_B, trained_BN, strict=True) if turns.size),
    )
