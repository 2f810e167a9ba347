"""A trajectory as pieces of text, each with who wrote it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kifu.agents import READ, WRITE
from kifu.dashboard.decode import Decode
from kifu.records import Event, Origin, Span, Trajectory

_LOST = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text of one token, or of the fewest tokens whose text is whole characters."""

    text: str
    origin: Origin
    turn: int
    token_ids: tuple[int, ...]
    logprob: float | None = None
    """Nats, of all its tokens together; None where nobody sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The whole sequence of one tape."""

    trajectory: str
    tape: int
    pieces: tuple[Piece, ...]
    forked_at: int | None = None
    """Position where the tape leaves its parent; None for the first."""


def transcript(trajectory: Trajectory, decode: Decode, *, tape: int = 0, spaced: bool = False) -> Transcript:
    """The tokens of a tape as text with origins.

    Text of single tokens is exact: the pieces of a span joined are the text of the span. Bytes of one character that
    are spread over tokens stand in one piece.

    Args:
        trajectory: the record.
        decode: token ids to text.
        tape: which context.
        spaced: put a space between tokens, for symbols.
    """
    pieces = [piece for span in trajectory.tape_spans(tape) for piece in _pieces(span, decode, spaced=spaced)]
    parent = trajectory.tapes[tape].parent
    return Transcript(
        trajectory=trajectory.id,
        tape=tape,
        pieces=tuple(pieces),
        forked_at=None if parent is None else trajectory.tapes[tape].fork_at,
    )


def memory_events(trajectory: Trajectory) -> list[tuple[int, Event]]:
    """What the policy kept outside of its context and looked up again, each with its turn."""
    return [(turn.index, event) for turn in trajectory.turns for event in turn.events if event.kind in (READ, WRITE)]


def memory_lines(trajectory: Trajectory) -> list[str]:
    """`memory_events` for people, a line for each."""
    return [f"turn {turn}: {_of_memory(event)}" for turn, event in memory_events(trajectory)]


def _of_memory(event: Event) -> str:
    detail = event.detail
    if event.kind == WRITE:
        before = "" if detail["replaced"] is None else f", in place of {detail['replaced']}"
        return f"remembered {detail['key']}: {detail['text']}{before}"
    found = detail["found"] if isinstance(detail["found"], list) else []
    items = "; ".join(f"{item['key']}: {item['text']}" for item in found if isinstance(item, dict))
    return f"looked up {json.dumps(detail['query'], ensure_ascii=False)}: {items or 'nothing found'}"


def _pieces(span: Span, decode: Decode, *, spaced: bool) -> Iterator[Piece]:
    ids = [int(token) for token in span.token_ids]
    start = 0
    while start < len(ids):
        stop = _whole(ids, start, decode)
        found = None if span.logprobs is None else float(span.logprobs[start:stop].sum(dtype="float64"))
        text = decode(ids[start:stop])
        yield Piece(
            text=f"{text} " if spaced else text,
            origin=span.origin,
            turn=span.turn,
            token_ids=tuple(ids[start:stop]),
            logprob=found,
        )
        start = stop


def _whole(ids: Sequence[int], start: int, decode: Decode) -> int:
    """End of the shortest run of tokens from ``start`` whose text has no torn character; one token if none has."""
    for stop in range(start + 1, min(start + 5, len(ids) + 1)):
        if _LOST not in decode(ids[start:stop]):
            return stop
    return start + 1
