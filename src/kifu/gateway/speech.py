"""From sampled ids to what the client is told."""

import json
from dataclasses import dataclass

from kifu.gateway.captured import Choice
from kifu.gateway.said import Said, SaidCall
from kifu.policy import Generation
from kifu.records import ToolCall
from kifu.render import ChatRenderer, Parsed, ToolView
from kifu.render.dialects.hermes import CLOSE, OPEN
from kifu.render.thinking import split_reasoning


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How turns of one call are read."""

    tools: tuple[ToolView, ...]
    """Empty when nothing in a turn counts as a call."""
    is_bare: bool = False
    """A completion without a template: its text is told as it is."""
    stop_strings: tuple[str, ...] = ()
    """Of the client: what is told ends before the first of them."""


def speak(
    renderer: ChatRenderer, generation: Generation, *, manner: Manner, name: str, withheld: str | None = None
) -> Choice:
    """Read a turn.

    Args:
        renderer: of the model.
        generation: the turn.
        manner: how to read it.
        name: unique in the run; ids of the message and of its calls are made from it.
        withheld: why its tokens are not trainable.
    """
    ids = generation.token_ids.tolist()
    while ids and ids[-1] in renderer.stop_ids:
        ids.pop()
    text = renderer.tokenizer.decode(ids)
    told, cut = cut_at(text, manner.stop_strings)
    parsed = Parsed(text=told) if manner.is_bare else _read(renderer, told, manner.tools)
    calls = tuple(
        ToolCall(name=call.name, arguments=call.arguments, id=f"call_{name}_{at}")
        for at, call in enumerate(parsed.calls)
    )
    content = told
    if not manner.is_bare:
        content = split_reasoning(told, opened=renderer.habits.opens_thinking)[1] or ""
    said = Said(
        role="assistant",
        content=visible(renderer.dialect.name, content) if calls else content,
        calls=tuple(
            SaidCall(id=call.id, name=call.name, arguments=json.dumps(dict(call.arguments), ensure_ascii=False))
            for call in calls
        ),
        reasoning=parsed.reasoning,
        id=f"msg_{name}",
    )
    whole = Parsed(text=text, calls=calls, error=parsed.error, reasoning=parsed.reasoning)
    return Choice(generation=generation, parsed=whole, said=said, cut=cut, withheld=withheld)


def cut_at(text: str, stop_strings: tuple[str, ...]) -> tuple[str, bool]:
    """Text before the first stop string, and whether there was one."""
    places = [at for at in (text.find(string) for string in stop_strings if string) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def visible(dialect: str, content: str) -> str:
    """Content of a turn beside its calls: what stands outside the blocks, where a dialect has blocks."""
    if not dialect.startswith("hermes/"):
        return ""
    kept = []
    for at, part in enumerate(content.split(OPEN)):
        kept.append(part if at == 0 else part.partition(CLOSE)[2])
    return "\n".join(text for text in (part.strip("\n") for part in kept) if text.strip())


def _read(renderer: ChatRenderer, text: str, tools: tuple[ToolView, ...]) -> Parsed:
    if tools:
        return renderer.parse_text(text, tools)
    reasoning, _ = split_reasoning(text, opened=renderer.habits.opens_thinking)
    return Parsed(text=text, reasoning=reasoning)
