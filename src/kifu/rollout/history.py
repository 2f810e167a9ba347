"""A history that forgets: the opening and the last turns are shown, earlier turns are dropped from the context.

Axes: ``T`` tokens of a context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kifu.errors import ExperimentError
from kifu.records import Ints
from kifu.render import ChatRenderer, Message, Piece, Renderer, ToolView

WINDOW = "context.window"
"""Event of a turn after which earlier turns were dropped: the rule, how many it keeps and which are out of sight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rule h' = update(h, a, o) that keeps what stood before the first turn and the last ``turns`` turns."""

    turns: int

    @property
    def id(self) -> str:
        """Name and version with its size."""
        return f"window/1({self.turns})"

    def dropped(self, messages: Sequence[Message], opening: int) -> int:
        """How many turns are out of sight when the next one is written."""
        spoken = sum(message.role == "assistant" for message in messages[opening:])
        return max(spoken - self.turns, 0)

    def kept(self, messages: Sequence[Message], opening: int) -> list[int]:
        """Indices of the messages that are shown; ``opening`` of them stand before the first turn."""
        turns = [at for at in range(opening, len(messages)) if messages[at].role == "assistant"]
        first = turns[-self.turns] if len(turns) >= self.turns else opening
        return [*range(opening), *range(first, len(messages))]


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
        raise ExperimentError("a window over turns needs a chat template; symbols have no messages to drop")
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
