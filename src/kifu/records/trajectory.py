"""A whole rollout, and the group it is compared within.

Axes: ``T`` token positions of one tape's whole sequence.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kifu.errors import RecordError
from kifu.records.outcome import Outcome, Verdict
from kifu.records.tokens import Ints, Origin, Span, Tape
from kifu.records.turns import Turn

_ID = re.compile(r"(train|evaluation|demonstration)/s(-?\d+)/t(\d+)/g(\d+)/m(\d+)/a(\d+)")


class Purpose(StrEnum):
    """What a rollout was made for. Only TRAIN rollouts can reach an update by a ratio."""

    TRAIN = "train"
    EVALUATION = "evaluation"
    DEMONSTRATION = "demonstration"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RolloutKey:
    """Where a rollout stands in its run. Ids are derived from it, never random."""

    seed: int
    """Seed of the run."""
    step: int
    group: int
    member: int
    attempt: int = 0
    purpose: Purpose = Purpose.TRAIN

    @property
    def id(self) -> str:
        """Readable and unique in the run, e.g. ``train/s0/t00003/g0002/m007/a0``; sorts in (group, member) order."""
        head = f"{self.purpose}/s{self.seed}/t{self.step:05d}"
        return f"{head}/g{self.group:04d}/m{self.member:03d}/a{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> "RolloutKey":
        """Read an id back.

        Raises:
            RecordError: not an id of a rollout.
        """
        found = _ID.fullmatch(text)
        if found is None:
            raise RecordError(f"{text!r} is not the id of a rollout, e.g. train/s0/t00003/g0002/m007/a0")
        seed, step, group, member, attempt = map(int, found.groups()[1:])
        return cls(purpose=Purpose(found[1]), seed=seed, step=step, group=group, member=member, attempt=attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRef:
    """Which task was attempted."""

    id: str
    family: str = ""
    split: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRef:
    """Which world the episode ran in."""

    id: str
    version: str
    seed: int
    initial_digest: str | None = None
    final_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What must be equal for the record to be recomputed."""

    protocol: str = ""
    """Hash of the frozen six-layer protocol."""
    tokenizer: str = ""
    template: str = ""
    parser: str = ""
    weights: str = ""
    """Digest of the initial weights; later versions stand in ``weights/versions.jsonl``."""
    history: str = "append/1"
    """Name and version of the rule h' = update(h, a, o)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Where a rollout left another one."""

    tree: str
    parent: str
    """Id of the trajectory it left."""
    turn: int
    """The first turn it wrote itself. Turns before it, their tokens and their results are the parent's, held once more
    so that every record is whole; ``sampled_tokens`` counts them on the parent alone."""
    chosen_by: str
    restored_by: str
    """``snapshot`` or ``replay``."""
    digest: str
    """State digest at the branch point, equal on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of an endless interaction: its index and the digests of what was carried over."""

    index: int
    carried_state: str | None = None
    carried_history: int = 0
    """Tokens of history carried into this segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured; excluded from the content digest."""

    seconds: float = 0.0
    generation_s: float = 0.0
    environment_s: float = 0.0
    waiting_s: float = 0.0
    started_at: float = 0.0
    """Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout, complete. Text, messages and training rows are views computed from it."""

    key: RolloutKey
    task: TaskRef
    environment: EnvironmentRef
    provenance: Provenance
    tapes: tuple[Tape, ...]
    turns: tuple[Turn, ...]
    outcome: Outcome
    verdict: Verdict | None = None
    """None when nobody could judge, e.g. after an infrastructure error."""
    final_value: float | None = None
    """V(h_T) under the sampling weights, for bootstrapping a truncated episode."""
    final_potential: float | None = None
    branch: Branch | None = None
    segment: Segment | None = None
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        for at, tape in enumerate(self.tapes):
            if tape.parent is not None and not 0 <= tape.parent < at:
                raise RecordError(f"{self.id}: tape {at} names parent {tape.parent}; a parent comes before its child")
            if tape.parent is not None and tape.fork_at > len(self.tapes[tape.parent]):
                raise RecordError(f"{self.id}: tape {at} forks at {tape.fork_at}, after its parent's end")
        for at, turn in enumerate(self.turns):
            if turn.index != at:
                raise RecordError(f"{self.id}: turn {at} carries index {turn.index}")
            if not 0 <= turn.tape < len(self.tapes) or turn.stop > len(self.tapes[turn.tape]):
                raise RecordError(f"{self.id}: turn {at} points outside tape {turn.tape}")
        if self.outcome.infra_error and self.reward is not None:
            raise RecordError(f"{self.id}: an infrastructure error has no reward, found {self.reward}")

    @property
    def id(self) -> str:
        """The derived id."""
        return self.key.id

    @property
    def reward(self) -> float | None:
        """The verdict's reward; None is absent, never 0."""
        return None if self.verdict is None else self.verdict.reward

    def tape_spans(self, tape: int) -> tuple[Span, ...]:
        """Spans of the whole sequence of a tape, those shared with its ancestors included (cut at the fork)."""
        this = self.tapes[tape]
        if this.parent is None:
            return this.spans
        kept: list[Span] = []
        room = this.fork_at
        for span in self.tape_spans(this.parent):
            if room <= 0:
                break
            kept.append(span if len(span) <= room else _cut(span, room))
            room -= len(span)
        return (*kept, *this.spans)

    def tape_ids(self, tape: int) -> Ints:
        """``[T]`` ids of a tape's whole sequence."""
        spans = self.tape_spans(tape)
        ids = np.concatenate([span.token_ids for span in spans]) if spans else np.zeros(0, np.int32)
        ids.flags.writeable = False
        return ids

    @property
    def sampled_tokens(self) -> int:
        """POLICY tokens, each counted once: on the tape and in the rollout that sampled it."""
        spans = [span for tape in self.tapes for span in tape.spans if span.origin is Origin.POLICY]
        return sum(len(span) for span in spans if not self.inherits(span.turn))

    def inherits(self, turn: int) -> bool:
        """Whether a turn was written by the rollout that this one branched from."""
        return self.branch is not None and turn < self.branch.turn

    @property
    def shared_tokens(self) -> int:
        """What the prefix of a branch cost its parent and not this rollout: tokens before its own first turn."""
        if self.branch is None:
            return 0
        own = self.turns[self.branch.turn :]
        return own[0].start if own else len(self.tapes[-1])


def _cut(span: Span, count: int) -> Span:
    token_ids = span.token_ids[:count]
    logprobs = None if span.logprobs is None else span.logprobs[:count]
    return Span(
        origin=span.origin,
        turn=span.turn,
        token_ids=token_ids,
        logprobs=logprobs,
        policy_version=span.policy_version,
        sampling=span.sampling,
        support=None if span.support is None else span.support[:count],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Attempts at one task, ordered by member. Statistics are taken over members with a reward."""

    task: TaskRef
    members: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise RecordError(f"group of task {self.task.id} has no members")
        strangers = sorted({member.task.id for member in self.members} - {self.task.id})
        if strangers:
            raise RecordError(f"group of task {self.task.id} holds attempts at {strangers}; one group is one task")
        keys = [member.key for member in self.members]
        if keys != sorted(keys):
            raise RecordError(f"group of task {self.task.id}: members must stand in (group, member) order")
