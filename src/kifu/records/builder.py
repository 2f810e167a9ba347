"""Building the tapes of a rollout while it runs.

Axes: ``N`` tokens appended at once, ``T`` token positions of a tape's whole sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kifu.errors import RecordError
from kifu.records.tokens import Bools, Floats, Ints, Origin, Sampling, Span, Support, Tape, as_floats, as_ints

_START_CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where tokens came to stand on their tape."""

    tape: int
    start: int
    stop: int


class TapeBuilder:
    """Appends spans to one tape. Forks belong to the same rollout, share the parent's prefix and are built with it."""

    def __init__(self, *, parent: "TapeBuilder | None" = None, fork_at: int = 0) -> None:
        """Start a rollout's first tape; later ones are made by `fork`."""
        self._family: list[TapeBuilder] = [] if parent is None else parent._family
        self.index = len(self._family)
        """Index of the tape in the trajectory."""
        self._family.append(self)
        self._parent = None if parent is None else parent.index
        self._fork_at = fork_at
        self._spans: list[Span] = []
        self._buffer: npt.NDArray[np.int32] = np.empty(max(_START_CAPACITY, 2 * fork_at), dtype=np.int32)
        self._length = fork_at
        if parent is not None:
            self._buffer[:fork_at] = parent.ids[:fork_at]

    @classmethod
    def at(cls, tapes: Sequence[Tape], *, tape: int, position: int) -> "TapeBuilder":
        """The tapes of a rollout as they stood when token ``position`` of tape ``tape`` was about to be written.

        Earlier tapes are whole, later ones were not there yet. Spans are shared, not copied.
        """
        family: list[TapeBuilder] = []
        for index, item in enumerate(tapes[: tape + 1]):
            if index and item.parent is None:
                raise RecordError(f"tape {index} has no parent: where the rollout went on from cannot be told")
            built = cls() if item.parent is None else cls(parent=family[item.parent], fork_at=item.fork_at)
            family.append(built)
            room = position - built.position if index == tape else len(item) - built.position
            for span in item.spans:
                if len(span) <= room:
                    built._spans.append(span)
                    built._extend(span.token_ids)
                elif room > 0:
                    built.append(span.origin, span.token_ids[:room], turn=span.turn)
                room = max(room - len(span), 0)
        if not family or family[-1].position != position:
            raise RecordError(f"tape {tape} does not hold {position} tokens; it cannot be gone on from there")
        return family[-1]

    @property
    def position(self) -> int:
        """Length of the whole sequence: where the next token will stand."""
        return self._length

    @property
    def ids(self) -> Ints:
        """``[T]`` the whole sequence, read-only. It is a view: later appends do not change it."""
        found = self._buffer[: self._length]
        found.flags.writeable = False
        return found

    def append(self, origin: Origin, token_ids: Sequence[int] | npt.NDArray[Any], *, turn: int) -> Written:
        """Add tokens nobody sampled; neighbours of one origin and turn become one span.

        Raises:
            RecordError: POLICY tokens; they come through `append_generation`.
        """
        if origin is Origin.POLICY:
            raise RecordError("policy tokens need logprobs, version and sampling: use append_generation")
        ids = as_ints(token_ids)
        start = self._length
        if ids.size:
            last = self._spans[-1] if self._spans else None
            if last is not None and (last.origin, last.turn) == (origin, turn):
                self._spans.pop()
                ids_span = as_ints(np.concatenate([last.token_ids, ids]))
            else:
                ids_span = ids
            self._spans.append(Span(origin=origin, turn=turn, token_ids=ids_span))
            self._extend(ids)
        return Written(tape=self.index, start=start, stop=self._length)

    def append_generation(
        self,
        token_ids: Ints,
        *,
        sampled: Bools,
        logprobs: Floats,
        policy_version: int,
        sampling: Sampling,
        turn: int,
        support: Sequence[Support | None] | None = None,
    ) -> Written:
        """Add what a sampler wrote: sampled tokens become POLICY spans, forced ones CONTROLLER spans.

        Args:
            token_ids: ``[N]`` with the sampled stop token.
            sampled: ``[N]`` False where there was one choice.
            logprobs: ``[N]`` nats; ignored where not sampled.
            policy_version: version of the weights that sampled.
            sampling: the effective distribution.
            turn: turn the tokens belong to.
            support: ``[N]``; None at a position, or for all, is the whole vocabulary.
        """
        count = int(token_ids.size)
        if sampled.size != count or logprobs.size != count or (support is not None and len(support) != count):
            raise RecordError(
                f"generation of turn {turn}: {count} ids, {sampled.size} flags, {logprobs.size} logprobs, "
                f"{'no' if support is None else len(support)} supports; all must have one entry per id"
            )
        start = self._length
        edges = np.flatnonzero(np.diff(sampled)) + 1
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), count], strict=True):
            if first == last:
                continue
            ids = as_ints(token_ids[first:last])
            if not sampled[first]:
                self.append(Origin.CONTROLLER, ids, turn=turn)
                continue
            kept = None if support is None else tuple(support[first:last])
            self._spans.append(
                Span(
                    origin=Origin.POLICY,
                    turn=turn,
                    token_ids=ids,
                    logprobs=as_floats(logprobs[first:last]),
                    policy_version=policy_version,
                    sampling=sampling,
                    support=None if kept is None or all(item is None for item in kept) else kept,
                )
            )
            self._extend(ids)
        return Written(tape=self.index, start=start, stop=self._length)

    def fork(self, at: int) -> "TapeBuilder":
        """A tape that shares the first ``at`` tokens of this one."""
        if not 0 <= at <= self._length:
            raise RecordError(f"tape {self.index} holds {self._length} tokens; it cannot be forked at {at}")
        return TapeBuilder(parent=self, fork_at=at)

    def build(self) -> tuple[Tape, ...]:
        """Every tape of the rollout, this one's relatives included, in order of their index."""
        return tuple(
            Tape(spans=tuple(item._spans), parent=item._parent, fork_at=item._fork_at) for item in self._family
        )

    def _extend(self, ids: Ints) -> None:
        need = self._length + int(ids.size)
        if need > self._buffer.size:
            grown = np.empty(max(need, 2 * self._buffer.size), dtype=np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : need] = ids
        self._length = need
