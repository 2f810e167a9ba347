"""Where a conversation goes on: which message it left the record at, and the exact tokens of its context.

Axes: ``T`` tokens of a context, ``N`` tokens of a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kifu.errors import RenderError
from kifu.gateway.said import Said, SaidCall
from kifu.records import Ints, Json, ToolCall, as_ints
from kifu.render import ChatRenderer, Message, Piece, ToolView
from kifu.render.dialects import join_calls
from kifu.render.dialects.base import read_object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """The context of a call."""

    pieces: tuple[Piece, ...]
    """What follows the shared part."""
    shared: int
    """Tokens shared with the context of the turn it continues; 0 when it continues none."""
    token_ids: Ints
    """``[T]`` all of it."""
    rewritten: bool = False
    """Whether the template showed history differently, so that less than all of it is shared."""


def lay_after(
    renderer: ChatRenderer,
    context: Ints,
    *,
    history: Sequence[Message],
    news: Sequence[Message],
    tools: Sequence[ToolView],
    known: Mapping[int, Ints] = MappingProxyType({}),
) -> Laid:
    """Go on after a turn whose exact context is held.

    Args:
        renderer: of the model.
        context: ``[T]`` up to the end of the turn.
        history: messages up to the turn.
        news: messages after it.
        tools: of the conversation.
        known: ids of messages among ``news`` that the policy wrote elsewhere.
    """
    extension = renderer.follow(context, history, news, tools=tools, known=known)
    shared = int(context.size) if extension.fork_at is None else extension.fork_at
    return Laid(
        pieces=extension.pieces,
        shared=shared,
        token_ids=as_ints(np.concatenate([context[:shared], *(piece.token_ids for piece in extension.pieces)])),
        rewritten=shared < context.size,
    )


def lay_fresh(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolView],
    known: Mapping[int, Ints] = MappingProxyType({}),
) -> Laid:
    """Begin a context."""
    pieces = renderer.resume(messages, tools, known=known)
    ids = np.concatenate([piece.token_ids for piece in pieces]) if pieces else np.zeros(0, np.int32)
    return Laid(pieces=pieces, shared=0, token_ids=as_ints(ids))


def as_message(said: Said, *, renderer: ChatRenderer, tools: Sequence[ToolView]) -> Message:
    """A message of the client as the renderer takes it; its calls are written in the dialect.

    Raises:
        RenderError: the dialect cannot write its calls.
    """
    if said.role != "assistant" or not said.calls:
        return Message(role=said.role, content=said.content, reasoning=said.reasoning)
    calls = tuple(as_call(call) for call in said.calls)
    strangers = [_unknown_tool(call) for call in calls if call.name not in {tool.name for tool in tools}]
    content = join_calls(renderer.dialect, said.content, calls=calls, tools=[*tools, *strangers])
    return Message(role="assistant", content=content, reasoning=said.reasoning, calls=calls)


def as_call(call: SaidCall) -> ToolCall:
    """A call with its arguments read.

    Raises:
        RenderError: the arguments are not a JSON object.
    """
    try:
        return ToolCall(name=call.name, arguments=read_object(call.arguments), id=call.id)
    except (ValueError, RecursionError) as cause:
        raise RenderError(f"the arguments of a call of `{call.name}` are not a JSON object: {cause}") from cause


def in_call_order(messages: Sequence[Said], calls: Sequence[SaidCall]) -> tuple[Said, ...]:
    """Results of parallel calls in the order of the calls, where ids tell which is which; the rest as it is."""
    count = next((at for at, said in enumerate(messages) if said.role != "tool"), len(messages))
    places = {call.id: at for at, call in enumerate(calls)}
    answered = [said.answers for said in messages[:count]]
    if len(set(answered)) != count or not set(answered) <= set(places):
        return tuple(messages)
    return (*sorted(messages[:count], key=lambda said: places[said.answers]), *messages[count:])


def without_stop(token_ids: Ints, stop_ids: Sequence[int]) -> Ints:
    """``[N]`` ids of a turn without the stop tokens at its end."""
    end = int(token_ids.size)
    while end and int(token_ids[end - 1]) in stop_ids:
        end -= 1
    return token_ids[:end]


def _unknown_tool(call: ToolCall) -> ToolView:
    """A tool for writing a call of one that is not offered any more."""
    schemas: dict[str, Json] = {name: {} for name in call.arguments}
    return ToolView(name=call.name, description="", parameters={"type": "object", "properties": schemas})
