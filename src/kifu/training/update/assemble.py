"""From groups of records to rows with credit: what is trained, with which advantage and weight, and what is not.

Pure: the same records and rules give the same rows. Axes: ``K`` turns, ``N`` trained tokens of a row.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kifu.algorithms import Algorithm, TurnCredit
from kifu.batching import Doubles, Row
from kifu.credit.episode import Episode
from kifu.credit.reading import Exclusion, RewardRules, read_episode, trained_origin
from kifu.records import Group, Ints, Origin, Purpose, Span, Support, Trajectory, as_floats, as_ints
from kifu.records.charges import Charge
from kifu.records.checks import placed_spans, pre_update_check
from kifu.records.ledger import Bucket
from kifu.training.update.borrowed import Borrowed, Scored
from kifu.training.update.crediting import Credited, Denominators, Member, credit_groups

_BY_OUTCOME: Mapping[Exclusion, Bucket] = {
    Exclusion.INFRA_ERROR: Bucket.INFRA_ERROR,
    Exclusion.TRUNCATED: Bucket.TRUNCATED_EXCLUDED,
}
"""Nothing is wrong with these records; how the episode ended keeps them out of the update."""


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
    times: Mapping[str, int] = field(default_factory=dict)
    """Trained trajectory to how often it stands in the update, copies of its group included."""
    borrowed: Borrowed = field(default_factory=Borrowed)
    """Records that are trained beside the step's own; no bucket of this step is theirs."""
    model_scores: Mapping[str, float] = field(default_factory=dict)
    """What a learned reward model said of the attempts, by id."""
    paid: Mapping[str, Doubles] = field(default_factory=dict)
    """``[K]`` what learned signals paid every turn of the attempts, by id."""
    rescored: frozenset[str] = frozenset()
    """Trajectories whose ratio is taken over logprobs of the weights that begin the step."""
    charges: tuple[Charge, ...] = ()
    """Costs that entered the rewards."""


def assemble(
    groups: Sequence[Group],
    *,
    algorithm: Algorithm,
    rules: RewardRules,
    version: int,
    max_age: int,
    borrowed: Borrowed | None = None,
    scored: Scored | None = None,
    observes: bool = False,
) -> Assembled:
    """Decide the bucket of every trajectory and build the rows of those that are trained.

    Args:
        groups: complete groups in order.
        algorithm: gives the credit, the selection of groups and the reduction.
        rules: how rewards become numbers.
        version: policy version about to be updated; also the seed of a selection that draws.
        max_age: how many versions behind a token may have been sampled.
        borrowed: which of the members are records from elsewhere, and whose places they take.
        scored: logprobs that were computed for this update.
        observes: whether tokens of the environment on trained tapes are predicted as well.
    """
    borrowed, scored = borrowed or Borrowed(), scored or Scored()
    buckets: dict[str, Bucket] = {}
    why: dict[str, str] = {}
    oldest, exempt = version - max_age, frozenset(borrowed.records)
    usable = [
        usable_members(group, rules=rules, oldest=oldest, buckets=buckets, why=why, exempt=exempt) for group in groups
    ]
    update = credit_groups(
        [[credited_as(member, episode, scored) for member, episode in members] for members in usable],
        algorithm=algorithm,
        rules=rules,
        seed=version,
    )
    rows: list[Row] = []
    times: dict[str, int] = {}
    for members, group in zip(usable, update.groups, strict=True):
        for at, (member, _) in enumerate(members):
            buckets[member.id] = Bucket.TRAINED if group.members else Bucket.DEGENERATE
            masked = group.members[at].left_out if group.members and group.members[at].weights_N.size else None
            if masked is not None:
                buckets[member.id], why[member.id] = Bucket.HELD_BACK, masked
            elif group.members:
                made = _rows(member, group.members[at], over=update.denominators, scored=scored)
                rows += map(_untempered, made) if algorithm.plan.untempered else made
                times[member.id] = group.members[at].credit.copies
            elif group.is_informative:
                why[member.id] = "the selection of groups left its group out"
    denominators = update.denominators
    if observes:
        members_by_id = {member.id: member for members in usable for member, _ in members}
        rows, denominators = _observing(rows, trajectories=members_by_id, over=denominators, times=times)
    for member in borrowed.set_aside:
        alone = Group(task=member.task, members=(member,))
        if usable_members(alone, rules=rules, oldest=oldest, buckets=buckets, why=why):
            buckets[member.id] = Bucket.HELD_BACK
            why[member.id] = f"{borrowed.replaced[member.id]} stands in its place"
    return Assembled(
        rows=tuple(rows),
        buckets={name: bucket for name, bucket in buckets.items() if name not in borrowed.records},
        why=why,
        denominators=denominators,
        groups=len(groups),
        informative=sum(group.is_informative for group in update.groups),
        copies=tuple(group.copies for group in update.groups),
        times=times,
        borrowed=borrowed,
        model_scores=scored.model,
        paid=scored.paid,
        rescored=frozenset(scored.present) & {row.trajectory for row in rows},
        charges=rules.charges,
    )


def usable_members(
    group: Group,
    *,
    rules: RewardRules,
    oldest: int,
    buckets: dict[str, Bucket],
    why: dict[str, str],
    exempt: Collection[str] = (),
) -> list[tuple[Trajectory, Episode]]:
    """The members a group is credited by, each with its numbers; the others get their bucket and the reason.

    Args:
        group: attempts at one task.
        rules: how rewards become numbers.
        oldest: version before which a token counts as stale.
        buckets: takes the bucket of every member that is not used.
        why: takes its reason.
        exempt: members that no age makes stale.
    """
    members: list[tuple[Trajectory, Episode]] = []
    for member in group.members:
        seen, problems = read_episode(member, rules), pre_update_check(member)
        if isinstance(seen, Exclusion) and seen in _BY_OUTCOME:
            buckets[member.id], why[member.id] = _BY_OUTCOME[seen], seen.value
        elif problems:
            buckets[member.id], why[member.id] = Bucket.DEMONSTRATION_ONLY, problems[0]
        elif isinstance(seen, Exclusion):
            buckets[member.id], why[member.id] = Bucket.HELD_BACK, seen.value
        elif member.key.purpose is Purpose.TRAIN and member.id not in exempt and _oldest_version(member) < oldest:
            buckets[member.id], why[member.id] = Bucket.STALE, f"sampled under a version before {oldest}"
        else:
            members.append((member, seen))
    return members


def bare_rows(trajectory: Trajectory) -> list[Row]:
    """The rows of a record without any credit, for whoever wants its logprobs alone."""
    turns_N = trained_turns(trajectory)
    nothing_N = np.zeros(turns_N.size)
    credit = TurnCredit(advantages_K=np.zeros(len(trajectory.turns)))
    credited = Credited(credit=credit, advantages_N=nothing_N, weights_N=nothing_N)
    over = Denominators(tokens=1, turns=1, trajectories=1)
    return list(_rows(trajectory, credited, over=over, scored=Scored()))


def credited_as(trajectory: Trajectory, episode: Episode, scored: Scored) -> Member:
    """A member with the facts that were computed for its update."""
    turns_N = trained_turns(trajectory)
    reference_N = scored.reference.get(trajectory.id)
    episode = replace(episode, model_score=scored.model.get(trajectory.id))
    if (paid_K := scored.paid.get(trajectory.id)) is not None:
        episode = replace(episode, rewards_K=episode.rewards_K + paid_K)
    if reference_N is not None:
        wide_N = reference_N.astype(np.float64)
        facts = tuple(
            replace(turn, reference_logprobs_N=wide_N[turns_N == index]) for index, turn in enumerate(episode.turns)
        )
        episode = replace(episode, turns=facts)
    return Member(episode=episode, turns_N=turns_N)


def _oldest_version(trajectory: Trajectory) -> int:
    spans = [span for tape in trajectory.tapes for span in tape.spans]
    return min((span.policy_version for span in spans if span.policy_version is not None), default=1 << 30)


def trained_turns(trajectory: Trajectory) -> npt.NDArray[np.int64]:
    """``[N]`` turn index of every trained token, tape after tape."""
    origin = trained_origin(trajectory)
    spans = [span for tape in trajectory.tapes for span in tape.spans if span.origin is origin]
    return np.array([span.turn for span in spans for _ in range(len(span))], dtype=np.int64)


def _rows(trajectory: Trajectory, credited: Credited, *, over: Denominators, scored: Scored) -> Iterator[Row]:
    used = 0
    reference_N, present_N = scored.reference.get(trajectory.id), scored.present.get(trajectory.id)
    for tape in range(len(trajectory.tapes)):
        tokens = (credited.advantages_N[used:], credited.weights_N[used:])
        row = _row(trajectory, tape, credit=credited.credit, tokens=tokens, over=over)
        if row is None:
            continue
        here = slice(used, used + row.positions.size)
        used = here.stop
        if reference_N is not None:
            row = replace(row, reference_logprobs=reference_N[here])
        if present_N is not None:
            row = replace(row, behaviour_logprobs=present_N[here])
        yield row if credited.credit.pair is None else replace(row, pair=credited.credit.pair)


def _untempered(row: Row) -> Row:
    """The row with log-probabilities at temperature 1 over the whole vocabulary."""
    count = row.positions.size
    return replace(row, temperatures=as_floats(np.ones(count)), supports=(None,) * count)


def _observing(
    rows: Sequence[Row], *, trajectories: Mapping[str, Trajectory], over: Denominators, times: Mapping[str, int]
) -> tuple[list[Row], Denominators]:
    """Rows that also predict what the environment wrote on their tapes, each token weighing the same."""
    positions = [_observed(trajectories[row.trajectory], row.tape) for row in rows]
    total = sum(times[row.trajectory] * found.size for row, found in zip(rows, positions, strict=True))
    made = [
        replace(
            row,
            token_ids=as_ints(
                trajectories[row.trajectory].tape_ids(row.tape)[: max(row.token_ids.size, found[-1] + 1)]
            ),
            observed_positions=found,
            observed_weights=np.full(found.size, times[row.trajectory] / total),
        )
        if found.size
        else row
        for row, found in zip(rows, positions, strict=True)
    ]
    return made, replace(over, observed=total)


def _observed(trajectory: Trajectory, tape: int) -> Ints:
    """Positions of a tape's own tokens that the environment wrote; the first token of a sequence is left out."""
    spans = (
        item
        for item in placed_spans(trajectory, origin=Origin.ENVIRONMENT)
        if item.tape == tape and not trajectory.inherits(max(item.span.turn - 1, 0))  # the parent's answers are its own
    )
    return as_ints([at for item in spans for at in range(item.start, item.stop) if at > 0])


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
