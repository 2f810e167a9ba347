"""From groups of records to rows with credit: what is trained, with which advantage and weight, and what is not.

Pure: the same records and rules give the same rows. Axes: ``K`` turns, ``N`` trained tokens of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kifu.algorithms import Algorithm, TurnCredit
from kifu.batching import Doubles, Row
from kifu.credit.episode import Episode
from kifu.credit.reading import Exclusion, RewardRules, read_episode, trained_origin
from kifu.credit.selection import copies_of_groups
from kifu.objectives import Reduction, token_weights
from kifu.records import Group, Ints, Purpose, Span, Support, Trajectory, as_floats, as_ints
from kifu.records.checks import pre_update_check
from kifu.records.ledger import Bucket

_BY_OUTCOME: Mapping[Exclusion, Bucket] = {
    Exclusion.INFRA_ERROR: Bucket.INFRA_ERROR,
    Exclusion.TRUNCATED: Bucket.TRUNCATED_EXCLUDED,
}
"""Nothing is wrong with these records; how the episode ended keeps them out of the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the whole update, never over a micro-batch."""

    tokens: int
    turns: int
    trajectories: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled:
    """One update, ready to be planned."""

    rows: tuple[Row, ...]
    """In (group, member) order, tapes of a trajectory next to each other."""
    buckets: Mapping[str, Bucket]
    """Trajectory id to where its tokens go."""
    why: Mapping[str, str]
    """Trajectory id to the reason it is not trained, where there is one to tell."""
    denominators: Denominators
    groups: int
    informative: int
    copies: tuple[int, ...] = ()
    """How often each group stands in the update, after the algorithm's selection."""


def assemble(
    groups: Sequence[Group], *, algorithm: Algorithm, rules: RewardRules, version: int, max_age: int
) -> Assembled:
    """Decide the bucket of every trajectory and build the rows of those that are trained.

    Args:
        groups: complete groups in order.
        algorithm: gives the credit, the selection of groups and the reduction.
        rules: how rewards become numbers.
        version: policy version about to be updated; also the seed of a selection that draws.
        max_age: how many versions behind a token may have been sampled.
    """
    buckets: dict[str, Bucket] = {}
    why: dict[str, str] = {}
    found: list[tuple[list[Trajectory], list[TurnCredit] | None]] = []
    rewards: list[list[float | None] | None] = []
    for group in groups:
        members, episodes = _usable(group, rules=rules, oldest=version - max_age, buckets=buckets, why=why)
        credits = algorithm.credit(episodes, rules) if episodes else None
        found.append((members, credits))
        rewards.append(None if credits is None else [episode.outcome for episode in episodes])
    copies = copies_of_groups(algorithm.plan.selection, rewards=rewards, seed=version)
    credited: list[tuple[Trajectory, TurnCredit]] = []
    for (members, credits), times in zip(found, copies, strict=True):
        for at, member in enumerate(members):
            is_trained = credits is not None and times > 0
            buckets[member.id] = Bucket.TRAINED if is_trained else Bucket.DEGENERATE
            if credits is not None and times > 0:
                credited.append((member, replace(credits[at], copies=credits[at].copies * times)))
            elif credits is not None:
                why[member.id] = "the selection of groups left its group out"
    if algorithm.plan.whiten:
        credited = _whiten(credited)
    rows, denominators = _rows(credited, algorithm.reduction)
    return Assembled(
        rows=rows,
        buckets=buckets,
        why=why,
        denominators=denominators,
        groups=len(groups),
        informative=sum(credits is not None for _, credits in found),
        copies=copies,
    )


def _usable(
    group: Group, *, rules: RewardRules, oldest: int, buckets: dict[str, Bucket], why: dict[str, str]
) -> tuple[list[Trajectory], list[Episode]]:
    members: list[Trajectory] = []
    episodes: list[Episode] = []
    for member in group.members:
        seen, problems = read_episode(member, rules), pre_update_check(member)
        if isinstance(seen, Exclusion) and seen in _BY_OUTCOME:
            buckets[member.id], why[member.id] = _BY_OUTCOME[seen], seen.value
        elif problems:
            buckets[member.id], why[member.id] = Bucket.DEMONSTRATION_ONLY, problems[0]
        elif isinstance(seen, Exclusion):
            buckets[member.id], why[member.id] = Bucket.HELD_BACK, seen.value
        elif member.key.purpose is Purpose.TRAIN and _oldest_version(member) < oldest:
            buckets[member.id], why[member.id] = Bucket.STALE, f"sampled under a version before {oldest}"
        else:
            members.append(member)
            episodes.append(seen)
    return members, episodes


def _oldest_version(trajectory: Trajectory) -> int:
    spans = [span for tape in trajectory.tapes for span in tape.spans]
    return min((span.policy_version for span in spans if span.policy_version is not None), default=1 << 30)


def _trained_turns(trajectory: Trajectory) -> npt.NDArray[np.int64]:
    """``[N]`` turn index of every trained token, tape after tape."""
    origin = trained_origin(trajectory)
    spans = [span for tape in trajectory.tapes for span in tape.spans if span.origin is origin]
    return np.array([span.turn for span in spans for _ in range(len(span))], dtype=np.int64)


def _advantages(trajectory: Trajectory, credit: TurnCredit) -> Doubles:
    """``[N]`` advantage of every trained token, tape after tape."""
    turns_N = _trained_turns(trajectory)
    found_N = np.empty(turns_N.size, dtype=np.float64)
    for turn in np.unique(turns_N):
        at_N = turns_N == turn
        found_N[at_N] = credit.tokens(int(turn), int(at_N.sum()))
    return found_N


def _whiten(credited: list[tuple[Trajectory, TurnCredit]]) -> list[tuple[Trajectory, TurnCredit]]:
    """Normalize advantages over all trained tokens of the update: (A - mean) / (population std + 1e-8)."""
    if not credited:
        return credited
    values = np.concatenate([_advantages(trajectory, credit) for trajectory, credit in credited])
    mean, std = float(values.mean()), float(values.std()) + 1e-8
    return [
        (
            trajectory,
            replace(
                credit,
                advantages_K=(credit.advantages_K - mean) / std,
                token_advantages_K=None
                if credit.token_advantages_K is None
                else tuple((found - mean) / std for found in credit.token_advantages_K),
            ),
        )
        for trajectory, credit in credited
    ]


def _rows(credited: list[tuple[Trajectory, TurnCredit]], reduction: Reduction) -> tuple[tuple[Row, ...], Denominators]:
    turns_BN = [_trained_turns(trajectory) for trajectory, _ in credited]
    kept_BN = [
        np.array([credit.keeps(int(turn)) for turn in turns], dtype=np.bool_)
        for turns, (_, credit) in zip(turns_BN, credited, strict=True)
    ]
    copies_B = [credit.copies for _, credit in credited]
    weights_BN = token_weights(reduction, turns_BN=turns_BN, kept_BN=kept_BN, copies_B=copies_B)
    trained_BN = [turns[kept] for turns, kept in zip(turns_BN, kept_BN, strict=True)]
    over = Denominators(
        tokens=sum(copies * turns.size for copies, turns in zip(copies_B, trained_BN, strict=True)),
        turns=sum(copies * np.unique(turns).size for copies, turns in zip(copies_B, trained_BN, strict=True)),
        trajectories=sum(copies for copies, turns in zip(copies_B, trained_BN, strict=True) if turns.size),
    )
    rows: list[Row] = []
    for (trajectory, credit), weights_N in zip(credited, weights_BN, strict=True):
        used, advantages_N = 0, _advantages(trajectory, credit)
        for tape in range(len(trajectory.tapes)):
            row = _row(trajectory, tape, credit=credit, tokens=(advantages_N[used:], weights_N[used:]), over=over)
            if row is not None:
                used += row.positions.size
                rows.append(row)
    return tuple(rows), over


def _row(
    trajectory: Trajectory, tape: int, *, credit: TurnCredit, tokens: tuple[Doubles, Doubles], over: Denominators
) -> Row | None:
    """One tape's row; ``tokens`` are advantages and weights from this tape's first trained token on."""
    origin, position = trained_origin(trajectory), trajectory.tapes[tape].fork_at
    positions: list[int] = []
    chosen: list[Span] = []
    for span in trajectory.tapes[tape].spans:
        if span.origin is origin:
            positions.extend(range(position, position + len(span)))
            chosen.append(span)
        position += len(span)
    if not positions:
        return None
    turns = np.concatenate([np.full(len(span), span.turn) for span in chosen])
    values = _values(trajectory, tape, credit=credit, over=over)
    return Row(
        trajectory=trajectory.id,
        tape=tape,
        token_ids=as_ints(trajectory.tape_ids(tape)[: positions[-1] + 1]),
        positions=as_ints(positions),
        behaviour_logprobs=as_floats(np.concatenate([_logprobs(span) for span in chosen])),
        temperatures=as_floats(np.concatenate([np.full(len(span), _temperature(span)) for span in chosen])),
        supports=tuple(support for span in chosen for support in _supports(span)),
        advantages=tokens[0][: len(positions)],
        weights=tokens[1][: len(positions)],
        turns=as_ints(turns),
        value_positions=None if values is None else values.positions,
        value_targets=None if values is None else values.targets,
        old_values=None if values is None else values.old,
        value_weights=None if values is None else values.weights,
    )


class _Values(NamedTuple):
    positions: Ints
    targets: Doubles
    old: Doubles
    weights: Doubles


def _values(trajectory: Trajectory, tape: int, *, credit: TurnCredit, over: Denominators) -> _Values | None:
    targets_K = credit.value_targets_K
    turns = [turn for turn in trajectory.turns if turn.tape == tape]
    if targets_K is None or not turns:
        return None
    return _Values(
        positions=as_ints([turn.start - 1 for turn in turns]),
        targets=np.array([targets_K[turn.index] for turn in turns], dtype=np.float64),
        old=np.array([turn.estimate("value") for turn in turns], dtype=np.float64),
        weights=np.array([credit.copies * credit.keeps(turn.index) for turn in turns]) / max(over.turns, 1),
    )


def _logprobs(span: Span) -> np.ndarray:
    return np.zeros(len(span), np.float32) if span.logprobs is None else span.logprobs


def _temperature(span: Span) -> float:
    return 1.0 if span.sampling is None or span.sampling.temperature is None else span.sampling.temperature


def _supports(span: Span) -> tuple[Support | None, ...]:
    return span.support if span.support is not None else (None,) * len(span)
