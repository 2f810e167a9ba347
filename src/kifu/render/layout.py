"""Which characters of a rendered conversation are the template's and which are content.

The template is rendered with a placeholder in place of every content, and contents are put in afterwards. So no content
can steer the template, and the origin of every character is known. Only outer white space stays visible to the
template, because many strip it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from kifu.errors import RenderError
from kifu.records import Origin
from kifu.render.contract import ToolView
from kifu.render.dialects.hermes import schema_of
from kifu.render.template import ChatTemplate
from kifu.render.tokenizer import Chunk, Level

ReasoningForm: TypeAlias = Literal["field", "inline"]
"""How a template takes the reasoning of an assistant message: as ``reasoning_content`` or inside the content."""

_NONCE = "qKIFUq"
_SLOT = re.compile(rf"{_NONCE}([a-z])(\d+)z")
_CONTENT = f"{_NONCE}c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message, ready for the template."""

    role: str
    content: Chunk
    reasoning: Chunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A rendered conversation with placeholders."""

    text: str
    """With placeholders."""
    chunks: tuple[Chunk, ...]
    """With contents."""
    slots: tuple[str, ...]
    """Placeholder of each chunk that is a content, empty for the template's own."""

    def at(self, slot: str) -> int:
        """Position of a placeholder in ``text``.

        Raises:
            RenderError: the template does not show it exactly once.
        """
        if self.text.count(slot) != 1:
            raise RenderError(
                f"the chat template shows message {slot[len(_NONCE) + 1 : -1]} {self.text.count(slot)} times"
            )
        return self.text.index(slot)

    def after(self, slot: str) -> tuple[Chunk, ...]:
        """The chunks that follow a content."""
        return self.chunks[self.slots.index(slot) + 1 :]

    def news(self, slot: str) -> tuple[Chunk, ...]:
        """The chunks that follow the content of a message, where every later message is among them.

        Raises:
            RenderError: the template shows it more than once, or a later message before it.
        """
        self.at(slot)
        before = self.slots[: self.slots.index(slot)]
        early = [_number(other) for other in before if other.startswith(_CONTENT) and _number(other) > _number(slot)]
        if early:
            raise RenderError(f"the chat template shows message {early[0]} before message {_number(slot)}")
        return self.after(slot)


def content_slot(index: int) -> str:
    """Placeholder of the content of a message."""
    return f"{_CONTENT}{index}z"


def _number(slot: str) -> int:
    return int(slot[len(_CONTENT) : -1])


def reasoning_slot(index: int) -> str:
    """Placeholder of the reasoning of a message."""
    return f"{_NONCE}r{index}z"


def lay_out(
    template: ChatTemplate,
    entries: Sequence[Entry],
    *,
    tools: Sequence[ToolView] = (),
    form: ReasoningForm = "field",
    generation_prompt: bool,
    guard: Sequence[str] = (),
) -> Layout:
    """Render a conversation.

    Args:
        template: the chat template.
        entries: the messages.
        tools: given to the template.
        form: how it takes reasoning.
        generation_prompt: whether the header of the next assistant message follows.
        guard: spellings of control tokens; strings of ``tools`` that contain one, or what reads like one of our
            placeholders, are contents too.

    Raises:
        RenderError: the template fails, or does not show a message.
    """
    if _NONCE in template.source:
        raise RenderError(f"the chat template holds the reserved text {_NONCE}")
    schemas, strings = _guard_tools(tools, (*guard, _NONCE))
    text = template.render(
        [_message(entry, index, form, bare=False) for index, entry in enumerate(entries)],
        tools=schemas,
        generation_prompt=generation_prompt,
    )
    for index, entry in enumerate(entries):
        if entry.content.text.strip() and content_slot(index) not in text:
            raise RenderError(f"the chat template does not show message {index} ({entry.role})")
    contents = {f"{_NONCE}t{index}z": _json_chunk(string) for index, string in enumerate(strings)}
    for index, entry in enumerate(entries):
        contents[content_slot(index)] = _core(entry.content)
        if entry.reasoning is not None:
            contents[reasoning_slot(index)] = _core(entry.reasoning)
    bare = text
    if any(_margins(chunk) != ("", "") for entry in entries for chunk in (entry.content, entry.reasoning) if chunk):
        bare = template.render(
            [_message(entry, index, form, bare=True) for index, entry in enumerate(entries)],
            tools=schemas,
            generation_prompt=generation_prompt,
        )
    return _assemble(text, bare, contents=contents, entries=entries)


def _assemble(text: str, bare: str, *, contents: dict[str, Chunk], entries: Sequence[Entry]) -> Layout:
    """Put contents in; white space the template kept around a content belongs to the content."""
    margins = {}
    for index, entry in enumerate(entries):
        margins[content_slot(index)] = _margins(entry.content)
        if entry.reasoning is not None:
            margins[reasoning_slot(index)] = _margins(entry.reasoning)
    pieces, plain = _SLOT.split(text)[::3], _SLOT.split(bare)[::3]
    names = [match.group() for match in _SLOT.finditer(text)]
    if not contents.keys() >= set(names):
        raise RenderError("the chat template makes up a message that is not there")
    if len(plain) != len(pieces):
        plain = pieces
    chunks: list[Chunk] = []
    slots: list[str] = []
    for index, (piece, core) in enumerate(zip(pieces, plain, strict=True)):
        before = margins.get(names[index - 1], ("", ""))[1] if index else ""
        behind = margins.get(names[index], ("", ""))[0] if index < len(names) else ""
        left, right = next(
            ((one, two) for one in (before, "") for two in (behind, "") if piece == one + core + two), ("", "")
        )
        if left:
            chunks[-1] = _widened(chunks[-1], "", left)
        middle = piece[len(left) : len(piece) - len(right)]
        if middle:
            chunks.append(Chunk(origin=Origin.TEMPLATE, level=Level.TEMPLATE, text=middle))
            slots.append("")
        if index < len(names):
            chunks.append(_widened(contents[names[index]], right, ""))
            slots.append(names[index])
    return Layout(text=text, chunks=tuple(chunks), slots=tuple(slots))


def _message(entry: Entry, index: int, form: ReasoningForm, *, bare: bool) -> dict[str, str]:
    def value(chunk: Chunk, slot: str) -> str:
        left, right = ("", "") if bare else _margins(chunk)
        return left + slot + right if _is_shown(chunk) else chunk.text

    content = value(entry.content, content_slot(index))
    message = {"role": entry.role, "content": content}
    if entry.reasoning is not None:
        reasoning = value(entry.reasoning, reasoning_slot(index))
        if form == "inline":
            message["content"] = f"<think>\n{reasoning}\n</think>\n\n{content}"
        else:
            message |= {"reasoning_content": reasoning, "thinking": reasoning}
    return message


def _is_shown(chunk: Chunk) -> bool:
    return chunk.token_ids is not None or bool(chunk.text.strip())


def _margins(chunk: Chunk) -> tuple[str, str]:
    text = chunk.text
    if chunk.token_ids is not None or not text.strip():
        return "", ""
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


def _core(chunk: Chunk) -> Chunk:
    return chunk if chunk.token_ids is not None else replace(chunk, text=chunk.text.strip())


def _widened(chunk: Chunk, left: str, right: str) -> Chunk:
    return replace(chunk, text=left + chunk.text + right) if left or right else chunk


def _json_chunk(text: str) -> Chunk:
    return Chunk(origin=Origin.PROMPT, level=Level.DATA, text=text)


def foreign_strings(tools: Sequence[ToolView], guard: Sequence[str]) -> tuple[str, ...]:
    """Strings of tools that spell a control token, plain and as JSON writes them."""
    found: list[str] = []
    for tool in tools:
        _walk([schema_of(tool), tool.command], guard, found)
    return tuple(dict.fromkeys([*found, *map(_escaped, found)]))


def _guard_tools(tools: Sequence[ToolView], guard: Sequence[str]) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Schemas for the template, and the strings taken out of them because they spell a control token."""
    strings: list[str] = []
    found = [_walk(schema_of(tool), guard, strings) for tool in tools]
    # Templates write tools as JSON; the placeholder stands inside its quotes.
    return ([item for item in found if isinstance(item, dict)] or None), list(map(_escaped, strings))


def _walk(value: object, guard: Sequence[str], strings: list[str]) -> object:
    """Copy of a JSON value with a placeholder for every string that spells a control token."""
    if isinstance(value, dict):
        return {_walk(key, guard, strings): _walk(item, guard, strings) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, guard, strings) for item in value]
    if isinstance(value, str) and any(token in value for token in guard):
        strings.append(value)
        return f"{_NONCE}t{len(strings) - 1}z"
    return value


def _escaped(text: str) -> str:
    table = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(table.get(char, char) for char in text)
