"""Which attempts of a group are preferred to which.

Axes: ``G`` members of a group, ``K`` turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kifu.credit.episode import Episode
from kifu.credit.group import Rewards
from kifu.errors import ArgumentError


def preference_pairs(
    rewards_G: Rewards, *, names_G: Sequence[str] | None = None, margin: float = 0.0
) -> list[tuple[int, int]]:
    """Disjoint pairs (preferred, other) of members: the best with the worst, the next best with the next worst, …

    A pair's rewards differ by more than ``margin``. Members without a reward stand in no pair.

    Args:
        rewards_G: task rewards.
        names_G: rank members of equal reward, so that their order does not matter; else the earlier is better.
        margin: >= 0.
    """
    if not margin >= 0.0:
        raise ArgumentError(f"the margin of a preference must be >= 0, found {margin}")
    names_G = names_G or [""] * len(rewards_G)
    known = [(-float(reward), names_G[at], at) for at, reward in enumerate(rewards_G) if reward is not None]
    ranked = [(-worth, at) for worth, _, at in sorted(known)]
    pairs = [(ranked[at], ranked[-1 - at]) for at in range(len(ranked) // 2)]
    return [(best, worst) for (high, best), (low, worst) in pairs if high - low > margin]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongTurn:
    """A turn at which a member, in a state of the expert, called another tool."""

    member: int
    turn: int
    logprob: float
    """Nats of the whole action, as recorded: the higher, the harder to unlearn."""


def hardest_wrong_turn(group: Sequence[Episode], *, expert: int) -> WrongTurn | None:
    """The likeliest action of another member that names another tool in a state the expert was in.

    A member is compared with the expert turn by turn as long as states and actions agree; the first turn where the
    actions differ counts when the tools do. The same tool with other arguments is no wrong turn.

    Raises:
        ArgumentError: a state, an action or the logprobs of a turn are not recorded.
    """
    found = [
        WrongTurn(member=at, turn=turn, logprob=_logprob(member, turn))
        for at, member in enumerate(group)
        if at != expert and (turn := _parting(group[expert], member)) is not None
    ]
    return max(found, key=lambda item: (item.logprob, group[item.member].id), default=None)


def hardest_sampled_turn(group: Sequence[Episode], *, expert: int) -> WrongTurn | None:
    """The likeliest action with another tool among those that branch from the expert's own turns.

    Where a branch left the expert is on record, so no state is compared. Equal tools are no wrong turn, whatever their
    arguments; an action without a call names no tool. A branch that wrote nothing takes no part.

    Raises:
        ArgumentError: a tool or the logprobs of a turn are not recorded.
    """
    found = []
    for at, member in enumerate(group):
        branch = member.branch
        if branch is None or branch.parent != group[expert].id or branch.turn >= member.num_turns:
            continue
        own, other = group[expert].facts("tool")[branch.turn], member.facts("tool")[branch.turn]
        if own.tool != other.tool and other.num_tokens:
            found.append(WrongTurn(member=at, turn=branch.turn, logprob=_logprob(member, branch.turn)))
    return max(found, key=lambda item: (item.logprob, group[item.member].id), default=None)


def _parting(expert: Episode, member: Episode) -> int | None:
    for needed in ("state", "action", "tool"):
        expert.facts(needed), member.facts(needed)
    for turn, (one, two) in enumerate(zip(expert.turns, member.turns, strict=False)):
        if one.state != two.state:
            return None
        if one.action != two.action:
            return turn if one.tool != two.tool else None
    return None


def _logprob(member: Episode, turn: int) -> float:
    found = member.turns[turn].logprobs_N
    if found is None:
        raise member.lacking("logprobs_N", turn=turn)
    return float(found.sum())
