"""Growing a group whose rollouts branch: whole rollouts first, then branches in rounds, each from what is on record.

A round is decided when every rollout of the rounds before is accepted, from the records alone and from numbers derived
from the run's seed. So a run that goes on from its record grows the same trees.
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, assert_never

from kifu.algorithms import Plan
from kifu.credit.branching import (
    Allocated,
    EntropyBranching,
    Fork,
    Independent,
    Path,
    PreMonitored,
    RandomNodes,
    RolloutPlan,
    TopScore,
    TreeExpansion,
    branch_after_results,
    expand_tree,
    first_rollouts,
)
from kifu.credit.tree import EntropyKind
from kifu.envs import Environment
from kifu.errors import ExperimentError
from kifu.policy import uniform
from kifu.records import Origin, Trajectory, Turn
from kifu.records.blobs import BlobStore
from kifu.records.checks import turn_logprobs
from kifu.render import ChatRenderer, Renderer, SymbolRenderer
from kifu.rollout import Branchable, Departure, Setting, check_branchable
from kifu.training.collection.concurrently import all_of


class Attempt(Protocol):
    """Makes the member of a group, or finds it on record."""

    def __call__(self, member: int, departure: Departure | None, /) -> Coroutine[Any, Any, Trajectory]:
        """The member, accepted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grower:
    """How the groups of a stage come about."""

    plan: RolloutPlan
    vocabulary: int
    """Tokens of the policy; entropies are measured against the largest one it can have."""

    async def grow(self, attempt: Attempt, *, size: int, stream: str) -> list[Trajectory]:
        """A whole group, in member order.

        Args:
            attempt: makes one member.
            size: members of the group.
            stream: names the group's own random numbers.
        """
        match self.plan:
            case Independent() | Allocated():  # of the latter the whole rollouts; `Allocator` gives the branches
                return await all_of([attempt(member, None) for member in range(size)])
            case EntropyBranching():
                return await self._by_entropy(self.plan, attempt, size=size, stream=stream)
            case TreeExpansion():
                return await self._by_expansion(self.plan, attempt, size=size, stream=stream)
            case _ as unreachable:
                assert_never(unreachable)

    async def _by_entropy(
        self, plan: EntropyBranching, attempt: Attempt, *, size: int, stream: str
    ) -> list[Trajectory]:
        members = [await attempt(0, None)] if isinstance(plan.start, PreMonitored) else []
        first = next(iter(_paths(members, plan)), None)
        whole = first_rollouts(plan, first, budget=size, vocabulary=self.vocabulary)
        members += await _whole(attempt, range(len(members), whole))
        turn, grown = 1, 0
        while len(members) < size and turn < max(len(member.turns) for member in members):
            forks = branch_after_results(
                plan,
                _paths(members, plan),
                turn=turn,
                room=size - len(members),
                vocabulary=self.vocabulary,
                uniform=lambda at, draw: uniform(stream, turn=at, position=draw),
                grown=grown,
            )
            members += await _branches(attempt, forks, members, chosen_by=f"entropy {plan.side}")
            grown, turn = grown + 1 if forks else 0, turn + 1
        return members + await _whole(attempt, range(len(members), size))

    async def _by_expansion(self, plan: TreeExpansion, attempt: Attempt, *, size: int, stream: str) -> list[Trajectory]:
        members = await _whole(attempt, range(min(plan.chains, size)))
        for number in range(plan.rounds):
            forks = expand_tree(
                plan,
                _paths(members, plan),
                number=number,
                room=size - len(members),
                uniform=lambda at, draw: uniform(stream, turn=at, position=draw),
            )
            how = "random node" if isinstance(plan.choice, RandomNodes) else "node of highest score"
            members += await _branches(attempt, forks, members, chosen_by=how)
        return members + await _whole(attempt, range(len(members), size))


async def _whole(attempt: Attempt, places: range) -> list[Trajectory]:
    return await all_of([attempt(member, None) for member in places])


async def _branches(
    attempt: Attempt, forks: Sequence[Fork], members: Sequence[Trajectory], *, chosen_by: str
) -> list[Trajectory]:
    known = {member.id: member for member in members}
    departures = [Departure(parent=known[fork.parent], turn=fork.turn, chosen_by=chosen_by) for fork in forks]
    return await all_of([attempt(len(members) + at, departure) for at, departure in enumerate(departures)])


def _paths(members: Sequence[Trajectory], plan: EntropyBranching | TreeExpansion) -> list[Path]:
    """Members that branches may leave from; a failure of the infrastructure is no place to go on from."""
    return [path_of(member, plan) for member in members if member.turns and not member.outcome.infra_error]


def path_of(trajectory: Trajectory, plan: EntropyBranching | TreeExpansion) -> Path:
    """A record as the rules of branching look at it.

    Raises:
        ExperimentError: the entropies they need are not on record.
    """
    head = plan.head if isinstance(plan, EntropyBranching) else 0
    choice = plan.choice if isinstance(plan, TreeExpansion) else None
    logprobs, branch = turn_logprobs(trajectory), trajectory.branch
    counts = _sampled_tokens(trajectory)
    kind: EntropyKind = choice.entropy if isinstance(choice, TopScore) else "recorded"
    return Path(
        id=trajectory.id,
        heads_K=tuple(_head(trajectory, turn, head, counts=counts) for turn in trajectory.turns),
        entropies_K=tuple(_entropy(turn, kind, counts=counts, logprobs=logprobs) for turn in trajectory.turns),
        parent=None if branch is None else branch.parent,
        own=0 if branch is None else branch.turn,
    )


def _head(trajectory: Trajectory, turn: Turn, head: int, *, counts: Mapping[int, int]) -> float:
    found = turn.token_entropies[:head]
    if head and not found and counts.get(turn.index, 0):
        raise ExperimentError(
            f"{trajectory.id}, turn {turn.index}: the method branches by entropy, and the engine recorded none; "
            "use an engine that gives `Generation.entropies`"
        )
    return sum(found)


def _entropy(turn: Turn, kind: EntropyKind, *, counts: Mapping[int, int], logprobs: Mapping[int, float]) -> float:
    recorded = turn.estimate("entropy")
    if kind == "recorded" and recorded is not None:
        return recorded
    return -logprobs.get(turn.index, 0.0) / max(counts.get(turn.index, 0), 1)


def _sampled_tokens(trajectory: Trajectory) -> dict[int, int]:
    found: dict[int, int] = {}
    for span in (span for tape in trajectory.tapes for span in tape.spans if span.origin is Origin.POLICY):
        found[span.turn] = found.get(span.turn, 0) + len(span)
    return found


def branching_setting(setting: Setting, plan: Plan, *, environment: type[Environment], states: BlobStore) -> Setting:
    """The setting with what the plan needs on record.

    Args:
        setting: of the rollouts.
        plan: of the method.
        environment: whose states are kept.
        states: where.
    """
    rollout = plan.rollout
    head = rollout.head if isinstance(rollout, EntropyBranching) else 0
    setting = replace(setting, token_entropies=setting.max_new_tokens if plan.token_entropies else head)
    if isinstance(rollout, Independent):
        return setting
    return replace(setting, branchable=Branchable(states=states, snapshot=check_branchable(environment)))


def vocabulary_of(renderer: Renderer) -> int:
    """Tokens a policy chooses from."""
    if isinstance(renderer, SymbolRenderer):
        return renderer.vocab_size
    assert isinstance(renderer, ChatRenderer)
    return renderer.tokenizer.vocab_size
