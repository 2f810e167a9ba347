"""What rollouts that branched share: who wrote a turn, how many hold a sampled token, and the audit of both."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from kifu.records.tokens import Origin
from kifu.records.trajectory import Branch, Trajectory


def owner_of(trajectory: Trajectory, turn: int, records: Mapping[str, Trajectory]) -> Trajectory:
    """The rollout that wrote a turn; where its line of parents leaves ``records``, the last one in it."""
    while trajectory.inherits(turn):
        assert trajectory.branch is not None
        parent = records.get(trajectory.branch.parent)
        if parent is None:
            break
        trajectory = parent
    return trajectory


def occurrences(trajectories: Iterable[Trajectory], records: Mapping[str, Trajectory]) -> Counter[int]:
    """Sampled tokens by the number of ``trajectories`` that hold them; those of a shared turn are held by several."""
    holders: Counter[tuple[str, int]] = Counter()
    tokens: dict[tuple[str, int], int] = {}
    for trajectory in trajectories:
        for turn, count in _sampled(trajectory).items():
            place = (owner_of(trajectory, turn, records).id, turn)
            holders[place] += 1
            tokens[place] = count
    found: Counter[int] = Counter()
    for place, times in holders.items():
        found[times] += tokens[place]
    return found


def _sampled(trajectory: Trajectory) -> Counter[int]:
    """Sampled tokens of every turn."""
    found: Counter[int] = Counter()
    for span in (span for tape in trajectory.tapes for span in tape.spans if span.origin is Origin.POLICY):
        found[span.turn] += len(span)
    return found


def branch_problems(trajectory: Trajectory, records: Mapping[str, Trajectory]) -> Iterator[str]:
    """What a branch claims to share with its parent and does not; nothing for a rollout that branched from none."""
    branch = trajectory.branch
    if branch is None:
        return
    parent = records.get(branch.parent)
    if parent is None:
        yield f"branched from {branch.parent}, of which there is no record"
        return
    if branch.turn >= len(parent.turns) or branch.turn > len(trajectory.turns):
        yield f"branched before turn {branch.turn} of {parent.id}, which has {len(parent.turns)} turns"
        return
    yield from _differences(trajectory, parent, branch)


def _differences(trajectory: Trajectory, parent: Trajectory, branch: Branch) -> Iterator[str]:
    if branch.tree != (parent.id if parent.branch is None else parent.branch.tree):
        yield f"stands in tree {branch.tree}, its parent {parent.id} in another"
    if trajectory.task != parent.task or trajectory.environment.seed != parent.environment.seed:
        yield f"attempts another task than {parent.id}, from which it branched"
    noted = parent.turns[branch.turn].state_before
    if noted != branch.digest:
        yield f"went on from state {branch.digest[:12]}, {parent.id} was in {noted and noted[:12]} then"
    for turn, other in zip(trajectory.turns[: branch.turn], parent.turns, strict=False):
        answers = [(result.text, result.digest_before) for result in turn.results]
        same = answers == [(result.text, result.digest_before) for result in other.results]
        if not same or (turn.text, turn.action, turn.rewards) != (other.text, other.action, other.rewards):
            yield f"turn {turn.index} is shared with {parent.id}, and the two records tell it differently"
    last = parent.turns[branch.turn]
    shared = trajectory.tape_ids(min(last.tape, len(trajectory.tapes) - 1))[: last.start]
    if not np.array_equal(shared, parent.tape_ids(last.tape)[: last.start]):
        yield f"the first {last.start} tokens are shared with {parent.id}, and the two records hold others"
    for turn_index, logprobs in _logprobs(trajectory, before=branch.turn).items():
        if not np.array_equal(logprobs, _logprobs(parent, before=branch.turn).get(turn_index, ())):
            yield f"turn {turn_index} is shared with {parent.id}, and the two records hold other logprobs"


def _logprobs(trajectory: Trajectory, *, before: int) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for span in (span for tape in trajectory.tapes for span in tape.spans if span.logprobs is not None):
        if span.turn < before and span.logprobs is not None:
            found.setdefault(span.turn, []).extend(span.logprobs.tolist())
    return found
