r"""Regular sets of texts, read character by character: the patterns a parameter of a tool may have.

A pattern is what JSON Schema's ``pattern`` is, anchored at both ends: characters, escaped ones such as ``\.``, ``\d``
for a digit, classes ``[a-z_]``, groups, ``|``, ``?``, ``*``, ``+`` and ``{m,n}``.
"""

from dataclasses import dataclass

from kifu.errors import RenderError

MAX_REPEATS = 64
MAX_PLACES = 20_000
_DIGITS = frozenset("0123456789")
_SPECIAL = frozenset("\\^$.|?*+()[]{}")

States = frozenset[int]
"""Where a reader may stand."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One of some characters."""

    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: "tuple[Regular, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    parts: "tuple[Regular, ...]"


@dataclass(frozen=True, slots=True)
class Repeated:
    """From ``least`` to ``most`` times; None is without end."""

    part: "Regular"
    least: int
    most: int | None


Regular = Chars | Sequence | Either | Repeated


def literal(text: str) -> Regular:
    """A single text."""
    return Sequence(tuple(Chars(frozenset(char)) for char in text))


def pattern(source: str) -> Regular:
    r"""Read a pattern.

    Raises:
        RenderError: it is not anchored at both ends, or has something else than what the module lists.

    >>> texts = Automaton.of(pattern(r"^(a|bc)+\d$"))
    >>> [texts.is_whole(texts.read(texts.start, text)) for text in ("abca7", "a", "a77")]
    [True, False, False]
    """
    if not source.startswith("^") or not source.endswith("$"):
        raise RenderError(f"pattern {source!r:.200}: it must begin with ^ and end with $")
    return _Reader(source).whole()


class Automaton:
    """A set of texts as a non-deterministic automaton, made deterministic as far as it is read."""

    def __init__(self) -> None:
        self._free: list[list[int]] = []
        self._moves: list[tuple[frozenset[str], int] | None] = []
        self._known: dict[tuple[States, str], States] = {}
        self._final = 0
        self.start: States = frozenset()
        self.alphabet: frozenset[str] = frozenset()
        """Characters that occur in any text."""

    @classmethod
    def of(cls, texts: Regular) -> "Automaton":
        """Build it.

        Raises:
            RenderError: it has too many places.
        """
        made = cls()
        first = made._place()
        made._final = made._lay(texts, first)
        made.start = made._closed({first})
        made.alphabet = frozenset(char for move in made._moves if move is not None for char in move[0])
        return made

    def step(self, states: States, char: str) -> States:
        """Where a reader stands after one more character; empty when no text goes on so."""
        key = states, char
        if key not in self._known:
            moves = (self._moves[state] for state in states)
            self._known[key] = self._closed({move[1] for move in moves if move is not None and char in move[0]})
        return self._known[key]

    def read(self, states: States, text: str) -> States:
        """The same for several characters."""
        for char in text:
            if not states:
                break
            states = self.step(states, char)
        return states

    def is_whole(self, states: States) -> bool:
        """Whether what was read is one of the texts."""
        return self._final in states

    def _closed(self, states: set[int]) -> States:
        ahead = list(states)
        while ahead:
            for state in self._free[ahead.pop()]:
                if state not in states:
                    states.add(state)
                    ahead.append(state)
        return frozenset(states)

    def _place(self) -> int:
        if len(self._free) >= MAX_PLACES:
            raise RenderError(f"a pattern with more than {MAX_PLACES} places; repeat less in it")
        self._free.append([])
        self._moves.append(None)
        return len(self._free) - 1

    def _lay(self, texts: Regular, at: int) -> int:
        """The place where a reader stands that has read one of the texts from ``at`` on."""
        match texts:
            case Chars(chars):
                before, after = self._place(), self._place()
                self._free[at].append(before)
                self._moves[before] = chars, after
                return after
            case Sequence(parts):
                for part in parts:
                    at = self._lay(part, at)
                return at
            case Either(parts):
                end = self._place()
                for part in parts:
                    self._free[self._lay(part, at)].append(end)
                return end
            case Repeated(part, least, most):
                return self._lay_repeated(part, at, least=least, most=most)

    def _lay_repeated(self, part: Regular, at: int, *, least: int, most: int | None) -> int:
        for _ in range(least):
            at = self._lay(part, at)
        if most is None:
            loop = self._place()
            self._free[at].append(loop)
            self._free[self._lay(part, loop)].append(loop)
            return loop
        end = self._place()
        for _ in range(most - least):
            self._free[at].append(end)
            at = self._lay(part, at)
        self._free[at].append(end)
        return end


class _Reader:
    """Reads the source of a pattern from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 1

    def whole(self) -> Regular:
        found = self._either()
        if self._at != len(self._source) - 1:
            raise self._wrong("a bracket that nothing opened")
        if isinstance(found, Either):
            raise self._wrong("put alternatives in a group, ^(a|b)$: else ^ and $ belong to one of them each")
        return found

    def _either(self) -> Regular:
        parts = [self._sequence()]
        while self._next == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _sequence(self) -> Regular:
        parts: list[Regular] = []
        while self._next not in ("|", ")", ""):
            parts.append(self._times(self._item()))
        return Sequence(tuple(parts))

    def _item(self) -> Regular:
        if self._next == "[":
            return Chars(self._class())
        if self._next != "(":
            return Chars(frozenset(self._chars()))
        self._at += 3 if self._source.startswith("(?:", self._at) else 1
        found = self._either()
        if self._next != ")":
            raise self._wrong("a group that is not closed")
        self._at += 1
        return Sequence((found,))

    def _chars(self) -> frozenset[str]:
        char, at = self._next, self._at
        if char == "\\":
            escaped = self._source[at + 1 : len(self._source) - 1][:1]
            if escaped != "d" and (escaped.isalnum() or not escaped):
                raise self._wrong(f"\\{escaped} is not understood")
            self._at += 2
            return _DIGITS if escaped == "d" else frozenset(escaped)
        if char in _SPECIAL:
            raise self._wrong(f"{char!r} is not understood; with a \\ before it, it stands for itself")
        self._at += 1
        return frozenset(char)

    def _class(self) -> frozenset[str]:
        self._at += 1
        if self._next == "^":
            raise self._wrong("a class of characters that are left out is not understood; name those that are in it")
        found: set[str] = set()
        while self._next != "]":
            chars = self._member()
            if self._next == "-" and self._source[self._at + 1] != "]" and len(chars) == 1:
                self._at += 1
                last = self._member()
                chars = frozenset(map(chr, range(ord(min(chars)), ord(max(last)) + 1)))
            found |= chars
        self._at += 1
        return frozenset(found)

    def _member(self) -> frozenset[str]:
        char = self._next
        if not char:
            raise self._wrong("a class that is not closed")
        if char in _SPECIAL and char != "\\":
            self._at += 1
            return frozenset(char)
        return self._chars()

    def _times(self, part: Regular) -> Regular:
        char = self._next
        if char and char in "?*+":
            self._at += 1
            return Repeated(part, 1 if char == "+" else 0, 1 if char == "?" else None)
        if char != "{":
            return part
        stop = self._source.find("}", self._at)
        low, comma, high = self._source[self._at + 1 : max(stop, 0)].partition(",")
        most = None if comma and not high else high or low
        if not low.isdecimal() or not (most is None or (most.isdecimal() and int(low) <= int(most) <= MAX_REPEATS)):
            raise self._wrong(f"a count that is none, goes down or is above {MAX_REPEATS}")
        self._at = stop + 1
        return Repeated(part, int(low), None if most is None else int(most))

    @property
    def _next(self) -> str:
        return self._source[self._at] if self._at < len(self._source) - 1 else ""

    def _wrong(self, why: str) -> RenderError:
        return RenderError(f"pattern {self._source!r:.200}, position {self._at}: {why}")
