"""External memory: what a policy writes down and looks up again, outside of its context and outside of the world.

The policy is told of it as of any tool. The controller answers these calls; the environment hears nothing of them.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kifu.envs import Reply, ToolSpec, check_call
from kifu.errors import UsageError
from kifu.records import Event, Json, ToolCall

WRITE = "memory.write"
"""Event of a turn that changed the memory: the rule (``by``), the call, the ``key``, the ``text`` and what stood there
before (``replaced``, null for a new key)."""
READ = "memory.read"
"""Event of a turn that looked something up: the rule (``by``), the call, the ``query`` and what was ``found``, best
first; a miss found nothing."""


class Answer(NamedTuple):
    """What one call of a memory's tool gives."""

    reply: Reply
    event: Event | None
    """None where nothing was written and nothing looked up: the call was refused, and the reply says why."""


class Memory(Protocol):
    """A memory as one rollout holds it."""

    def answer(self, call: ToolCall, *, index: int) -> Answer:
        """Execute a call of one of the memory's tools; a function of the calls before it.

        Args:
            call: what the policy asked for.
            index: of the call in its turn; stands in the event.
        """
        ...


class MemoryRule(Protocol):
    """What kind of memory a policy has, the same for every rollout of a run."""

    @property
    def id(self) -> str:
        """Name and version with its bounds; part of the protocol."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """How the policy writes and reads it."""
        ...

    def begin(self) -> Memory:
        """The memory of a rollout as it starts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueMemory:
    """Texts under keys, empty when a rollout begins and gone when it ends.

    A text is found by its key or by what it says, without regard to case: the key that equals the query comes first,
    then keys that contain it, then texts that contain it; among equals what was written last. The empty query finds
    everything.
    """

    entries: int = 16
    """Keys it holds."""
    characters: int = 200
    """Of one text."""

    def __post_init__(self) -> None:
        if self.entries < 1 or self.characters < 1:
            raise UsageError(
                f"memory: found entries = {self.entries}, characters = {self.characters}; both must be at least 1"
            )

    @property
    def id(self) -> str:
        """Name and version with its bounds."""
        return f"key_value/1(entries={self.entries}, characters={self.characters})"

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """``remember`` and ``recall``."""
        key: Json = {"type": "string", "pattern": r"^\S{1,64}$", "description": "one word to find it by"}
        text: Json = {"type": "string", "description": f"what to keep, at most {self.characters} characters"}
        query: Json = {"type": "string", "description": "a key, or a part of a key or text"}
        return (
            ToolSpec(
                name="remember",
                description="Keep a text under a key in your memory, in place of what stood there.",
                parameters={"type": "object", "properties": {"key": key, "text": text}, "required": ["key", "text"]},
                command="remember {text} as {key}",
            ),
            ToolSpec(
                name="recall",
                description="Look up texts in your memory.",
                parameters={"type": "object", "properties": {"query": query}, "required": ["query"]},
                command="recall {query}",
            ),
        )

    def begin(self) -> "Notes":
        """An empty memory."""
        return Notes(self)


class Notes:
    """Implements `Memory`.

    Args:
        rule: its bounds.
    """

    def __init__(self, rule: KeyValueMemory) -> None:
        self._rule = rule
        self._texts: dict[str, str] = {}
        """By key, what was written last at the end."""

    def answer(self, call: ToolCall, *, index: int) -> Answer:
        """Write or look up; a call that does not fit changes nothing and is told why."""
        try:
            check_call(self._rule.tools, call)
            if call.name == "remember":
                return self._remember(str(call.arguments["key"]), str(call.arguments["text"]), index)
        except UsageError as refused:
            return Answer(Reply(text=f"Error: {refused}", error=str(refused)), None)
        return self._recall(str(call.arguments["query"]), index)

    def _remember(self, key: str, text: str, index: int) -> Answer:
        rule, replaced = self._rule, self._texts.get(key)
        if len(text) > rule.characters:
            raise UsageError(f"the text has {len(text)} characters, at most {rule.characters} are kept; shorten it")
        if replaced is None and len(self._texts) >= rule.entries:
            raise UsageError(
                f"memory is full with {rule.entries} keys; write over one of them: {', '.join(self._texts)}"
            )
        self._texts.pop(key, None)
        self._texts[key] = text
        detail: dict[str, Json] = {"by": rule.id, "call": index, "key": key, "text": text, "replaced": replaced}
        return Answer(Reply(text=f"Remembered as {key}."), Event(kind=WRITE, detail=detail))

    def _recall(self, query: str, index: int) -> Answer:
        latest_first = reversed(self._texts.items())
        ranks = [(_rank(query.casefold(), key.casefold(), text.casefold()), key, text) for key, text in latest_first]
        found = [(key, text) for wanted in _RANKS for rank, key, text in ranks if rank == wanted]
        shown = "\n".join(f"{key}: {text}" for key, text in found) or "Nothing in memory matches."
        detail: dict[str, Json] = {
            "by": self._rule.id,
            "call": index,
            "query": query,
            "found": [{"key": key, "text": text} for key, text in found],
        }
        return Answer(Reply(text=shown), Event(kind=READ, detail=detail))


_RANKS = range(3)


def _rank(query: str, key: str, text: str) -> int | None:
    """0 for the key itself, 1 for a part of the key, 2 for a part of the text; None where the query is in neither."""
    if query == key:
        return 0
    return 1 if query in key else 2 if query in text else None
