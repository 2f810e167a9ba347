"""Messages as a chat template takes them, and sampled ids in place of the texts they spell."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kifu.errors import RenderError
from kifu.records import Ints, Origin
from kifu.render.contract import Message, ToolView
from kifu.render.dialects import Dialect, join_calls
from kifu.render.layout import Entry, foreign_strings
from kifu.render.probes import Habits
from kifu.render.thinking import CLOSE, split_reasoning
from kifu.render.tokenizer import ChatTokenizer, Chunk, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns messages into entries for one template and one dialect."""

    habits: Habits
    dialect: Dialect
    policy: Origin
    """Origin of assistant text: PROMPT for demonstrations, CONTROLLER for history that is shown again."""
    observed: Origin
    """Origin of tool results."""
    guard: tuple[str, ...] = ()
    """Spellings of control tokens, which descriptions of tools must not turn into."""

    def entries(self, messages: Sequence[Message], tools: Sequence[ToolView]) -> list[Entry]:
        """Calls written out, tools described, results in the role the template knows."""
        found: list[Entry] = []
        pending: list[Message] = []
        for message in [*self._described(messages, tools), None]:
            if message is not None and message.role == "tool" and not self.habits.has_tool_role:
                pending.append(message)
                continue
            if pending:
                text = self.dialect.show([item.content for item in pending])
                found.append(Entry(role="user", content=Chunk(origin=self._seen(pending), text=text)))
                pending = []
            if message is not None:
                found.append(self._entry(message, tools))
        return found

    def _entry(self, message: Message, tools: Sequence[ToolView]) -> Entry:
        if message.role == "assistant":
            return self._assistant(message, tools)
        if message.role == "system":
            quoted = foreign_strings(tools, self.guard)
            content = Chunk(origin=Origin.PROMPT, level=Level.AUTHOR, text=message.content, quoted=quoted)
        else:
            origin = Origin.PROMPT if message.role == "user" else self._seen([message])
            content = Chunk(origin=origin, text=message.content)
        return Entry(role=message.role, content=content)

    def _seen(self, results: Sequence[Message]) -> Origin:
        """Origin of results that stand in one message."""
        return Origin.CONTROLLER if all(item.by_controller for item in results) else self.observed

    def _assistant(self, message: Message, tools: Sequence[ToolView]) -> Entry:
        reasoning, text = _apart(message)
        # What the policy wrote holds its calls already, in its own spelling.
        if self.policy is not Origin.CONTROLLER or not text:
            text = join_calls(self.dialect, text, calls=message.calls, tools=tools)
        return Entry(
            role="assistant",
            content=Chunk(origin=self.policy, level=Level.AUTHOR, text=text),
            reasoning=None if reasoning is None else Chunk(origin=self.policy, level=Level.AUTHOR, text=reasoning),
        )

    def _described(self, messages: Sequence[Message], tools: Sequence[ToolView]) -> list[Message]:
        """Add the dialect's description to the system text, unless the template describes tools itself."""
        found = list(messages)
        text = "" if self.habits.describes_tools else self.dialect.describe(tools)
        system = found.pop(0).content if found and found[0].role == "system" else None
        content = "\n\n".join(part for part in (system, text) if part)
        if not content and (system is None or not self.habits.has_system_role):
            return found
        if self.habits.has_system_role:
            return [Message(role="system", content=content), *found]
        if not found or found[0].role != "user":
            raise RenderError("the template has no system role, so the first message must be a user's")
        return [Message(role="user", content=f"{content}\n\n{found[0].content}"), *found[1:]]


def splice(
    tokenizer: ChatTokenizer, token_ids: Ints, entries: Sequence[Entry], *, stop_ids: Sequence[int]
) -> list[Entry]:
    """Put the ids a context holds in place of every assistant text they decode to, in order."""
    ids = token_ids.tolist()
    ends = [at for at, token in enumerate(ids) if token in stop_ids]
    ends += [] if ends and ends[-1] == len(ids) - 1 else [len(ids)]
    found, low = list(entries), 0
    for index, entry in enumerate(entries):
        if entry.role != "assistant":
            continue
        for stop in (end for end in ends if end > low):
            start = _suffix(tokenizer, ids[low:stop], entry.content.text)
            if start is not None:
                kept = tuple(ids[low + start : stop])
                found[index] = replace(entry, content=replace(entry.content, token_ids=kept))
                low = stop
                break
    return found


def _suffix(tokenizer: ChatTokenizer, ids: list[int], text: str) -> int | None:
    """Start of the suffix of ``ids`` that decodes to ``text``."""
    if not text or not tokenizer.decode(ids).endswith(text):
        return None
    for start in range(len(ids) - 1, -1, -1):
        found = tokenizer.decode(ids[start:])
        if found == text:
            return start
        if len(found) > len(text) + 8:
            return None
    return None


def _apart(message: Message) -> tuple[str | None, str]:
    """Thinking and answer of an assistant message whose content may be the whole turn as it was written."""
    reasoning, content = message.reasoning, message.content
    if reasoning is not None and content.strip("\n") == reasoning:
        return reasoning, ""
    found, rest = split_reasoning(content, opened=CLOSE in content)
    if found is None:
        return reasoning, content
    return (found if reasoning is None else reasoning), rest or ""
