"""Histories that forget: what of a conversation is shown when the next turn is written.

Axes: ``T`` tokens of a context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from kifu.errors import ExperimentError
from kifu.records import Event, Ints
from kifu.render import ChatRenderer, Message, Piece, Renderer, ToolView

CLEARED = "[An earlier result was cleared.]"
"""Stands in place of a tool result that is out of sight."""


class Shown(NamedTuple):
    """A shortened conversation."""

    messages: list[Message]
    places: list[int]
    """Where each stands in the whole one."""
    event: Event
    """What is out of sight, for the record."""


class History(Protocol):
    """A rule h' = update(h, a, o)."""

    @property
    def id(self) -> str:
        """Name and version with its size; part of the protocol."""
        ...

    def shown(self, messages: Sequence[Message], opening: int) -> Shown | None:
        """What the next turn is written after; None: all of it.

        Args:
            messages: the whole conversation.
            opening: how many of them stand before the first turn.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Keeps what stood before the first turn and the last ``turns`` turns; earlier turns are dropped."""

    turns: int

    @property
    def id(self) -> str:
        """Name and version with its size."""
        return f"window/1({self.turns})"

    def shown(self, messages: Sequence[Message], opening: int) -> Shown | None:
        """The opening and the last turns; ``context.window`` names the turns ``dropped``."""
        hidden = _earlier(messages, opening, self.turns)
        if not hidden:
            return None
        places = [at for at, turn in enumerate(_turns(messages, opening)) if turn not in hidden]
        event = Event(kind="context.window", detail={"by": self.id, "dropped": [*hidden]})
        return Shown([messages[at] for at in places], places, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedResults:
    """Keeps every turn, and the tool results of the last ``turns`` turns; `CLEARED` stands for each earlier one."""

    turns: int

    @property
    def id(self) -> str:
        """Name and version with its size."""
        return f"cleared_results/1({self.turns})"

    def shown(self, messages: Sequence[Message], opening: int) -> Shown | None:
        """The conversation with markers in it; ``context.cleared`` names the turns whose results were ``cleared``."""
        hidden = _earlier(messages, opening, self.turns)
        if not hidden:
            return None
        found = [
            replace(message, content=CLEARED, by_controller=True)
            if message.role == "tool" and turn in hidden
            else message
            for message, turn in zip(messages, _turns(messages, opening), strict=True)
        ]
        event = Event(kind="context.cleared", detail={"by": self.id, "cleared": [*hidden]})
        return Shown(found, [*range(len(messages))], event)


def _turns(messages: Sequence[Message], opening: int) -> list[int | None]:
    """The turn each message belongs to; None before the first."""
    found, turn = list[int | None](), -1
    for at, message in enumerate(messages):
        turn += at >= opening and message.role == "assistant"
        found.append(None if turn < 0 else turn)
    return found


def _earlier(messages: Sequence[Message], opening: int, kept: int) -> range:
    """All turns but the last ``kept`` ones."""
    spoken = sum(message.role == "assistant" for message in messages[opening:])
    return range(max(spoken - kept, 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaid:
    """A context that shares its first tokens with the one before."""

    shared: int
    pieces: tuple[Piece, ...]


def relay(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    before: Ints,
    opening: int,
    tools: Sequence[ToolView],
    known: Mapping[int, Ints],
) -> Relaid:
    """Lay a shortened conversation; what the policy wrote in it keeps its ids and is context, not an action.

    Args:
        renderer: of a language model.
        messages: what is shown.
        before: ``[T]`` the context so far.
        opening: tokens before the first turn; no more is shared, so that a tape never begins inside a turn.
        tools: as they stand now.
        known: ids of the policy's turns, stop tokens included, by index into ``messages``.

    Raises:
        ExperimentError: the renderer cannot begin in the middle of a conversation.
    """
    if not isinstance(renderer, ChatRenderer):
        raise ExperimentError("a history that forgets needs a chat template; symbols have no messages to leave out")
    pieces = renderer.resume(messages, tools, known={at: _said(ids, renderer) for at, ids in known.items()})
    after = np.concatenate([piece.token_ids for piece in pieces])
    count = min(before.size, after.size, opening)
    differs = np.flatnonzero(before[:count] != after[:count])
    shared = int(differs[0]) if differs.size else count
    rest, at = list[Piece](), 0
    for piece in pieces:
        own = piece.token_ids[max(shared - at, 0) :]
        at += piece.token_ids.size
        if own.size:
            rest.append(Piece(origin=piece.origin, token_ids=own))
    return Relaid(shared=shared, pieces=tuple(rest))


def _said(token_ids: Ints, renderer: ChatRenderer) -> Ints:
    end = int(token_ids.size)
    while end and int(token_ids[end - 1]) in renderer.stop_ids:
        end -= 1
    return token_ids[:end]
