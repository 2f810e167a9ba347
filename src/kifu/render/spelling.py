"""Grammars of calls whose arguments are not a finite list: what has a pattern is spelled token by token."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kifu.errors import RenderError
from kifu.records import Ints, as_ints
from kifu.render.regular import Automaton, Either, Regular, States, literal, pattern
from kifu.render.regular import Sequence as Sequenced
from kifu.render.tokenizer import ChatTokenizer, Level

_MAX_KEPT = 50_000
_NOTHING = as_ints([])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """What may be written for an argument."""

    pattern: str
    is_json: bool = False
    """The pattern is of the value as JSON writes it, with its quotes and escapes; else of the text itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a call is written: literal text, then a pattern, then literal text, and so on; it ends with a text."""

    texts: tuple[str, ...]
    """One more than there are patterns."""
    patterns: tuple[str, ...]

    @property
    def tail(self) -> Regular:
        """What follows the first text."""
        parts: list[Regular] = []
        for source, text in zip(self.patterns, self.texts[1:], strict=True):
            parts += [pattern(source), literal(text)]
        return Sequenced(tuple(parts))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a turn stands: in the tokens that begin a call, or behind them in one of its tails."""

    head: tuple[int, ...] | None
    tail: int = 0
    states: States = frozenset()


class CallGrammar:
    """Implements `Constraint`: one call, its beginning in canonical tokens, what its patterns leave open in any.

    Args:
        forms: of the calls; none begins as another one begins and goes on.
        tokenizer: of the model.
        end_id: ends the turn.
    """

    def __init__(self, forms: Iterable[Form], tokenizer: ChatTokenizer, *, end_id: int) -> None:
        tails: dict[tuple[int, ...], list[Regular]] = {}
        written = sorted({(form.texts, form.patterns) for form in forms})
        for texts, patterns in written:
            form = Form(texts=texts, patterns=patterns)
            begin = texts[0].rstrip(" ")  # a blank is written with what follows it
            head = tuple(tokenizer.encode(begin, Level.AUTHOR).tolist())
            tails.setdefault(head, []).append(Sequenced((literal(texts[0][len(begin) :]), form.tail)))
        self._children = _children(tails)
        clash = next((head for head in tails if head in self._children), None)
        if not written or clash is not None:
            what = "no call" if clash is None else f"a call that begins with all of {tokenizer.decode(clash)!r:.80}"
            raise RenderError(f"the grammar has {what}; give every tool another name, and a pattern text before it")
        self._tails = {head: Automaton.of(Either(tuple(parts))) for head, parts in tails.items()}
        self._heads = list(tails)
        self._texts = tokenizer.texts
        self._by_char = [_grouped(self._texts, self._tails[head].alphabet) for head in self._heads]
        self._end_id = end_id
        self._places: dict[tuple[int, ...], _Place] = {}
        self._allowed: dict[_Place, Ints] = {}
        told = json.dumps([written, sorted(self._heads), end_id, tokenizer.digest])
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """``[S]`` ids that continue ``prefix``; empty when the call is complete.

        Raises:
            RenderError: no call begins so.
        """
        place = self._place(tuple(prefix))
        if place not in self._allowed:
            self._allowed[place] = self._after(place)
        return self._allowed[place]

    def _place(self, prefix: tuple[int, ...]) -> _Place:
        if prefix not in self._places:
            place = self._step(self._place(prefix[:-1]), prefix[-1]) if prefix else self._at_head(())
            if place is None:
                raise RenderError(f"no call of the grammar begins with {list(prefix)[:16]}")
            if len(self._places) >= _MAX_KEPT:
                self._places.clear()
            self._places[prefix] = place
        return self._places[prefix]

    def _step(self, place: _Place, token: int) -> _Place | None:
        if place.head is not None:
            is_known = token in self._children[place.head]
            return self._at_head((*place.head, token)) if is_known else None
        automaton = self._tails[self._heads[place.tail]]
        if token == self._end_id:
            return _Place(None, place.tail) if automaton.is_whole(place.states) else None
        states = automaton.read(place.states, self._texts.get(token, "\0"))
        return _Place(None, place.tail, states) if states else None

    def _at_head(self, head: tuple[int, ...]) -> _Place:
        if head not in self._tails:
            return _Place(head)
        return _Place(None, self._heads.index(head), self._tails[head].start)

    def _after(self, place: _Place) -> Ints:
        if place.head is not None:
            return as_ints(sorted(self._children[place.head]))
        if not place.states:
            return _NOTHING
        automaton, groups = self._tails[self._heads[place.tail]], self._by_char[place.tail]
        found = [self._end_id] if automaton.is_whole(place.states) else []
        for char, tokens in groups.items():
            states = automaton.step(place.states, char)
            if states:
                found += [token for token, rest in tokens if automaton.read(states, rest)]
        if not found:
            raise RenderError("the tokenizer has no token for what a pattern demands next")
        return as_ints(np.unique(found))


def _children(heads: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], set[int]]:
    found: dict[tuple[int, ...], set[int]] = {}
    for head in heads:
        for at, token in enumerate(head):
            found.setdefault(head[:at], set()).add(token)
    return found


def _grouped(texts: Mapping[int, str], alphabet: frozenset[str]) -> dict[str, list[tuple[int, str]]]:
    """Tokens made of an alphabet, by their first character, each with the rest of its text."""
    found: dict[str, list[tuple[int, str]]] = {}
    for token, text in texts.items():
        if text and alphabet.issuperset(text):
            found.setdefault(text[0], []).append((token, text[1:]))
    return found


def forms_of(texts: Iterable[str], holes: Mapping[str, Hole]) -> list[Form]:
    """Cut written calls at the marks that stand in them for arguments.

    Args:
        texts: calls, with a mark in place of every argument that is a hole.
        holes: by mark, a character that occurs nowhere else.

    Raises:
        RenderError: a pattern has characters that a call would have to escape, or that would be stripped from it.
    """
    by_text = {f'"{mark}"' if hole.is_json else mark: hole for mark, hole in holes.items()}
    cut = re.compile(f"({'|'.join(map(re.escape, by_text))})") if by_text else None
    found = []
    for text in texts:
        parts = cut.split(text) if cut else [text]
        written = tuple(by_text[part] for part in parts[1::2])
        found.append(Form(texts=tuple(parts[::2]), patterns=tuple(hole.pattern for hole in written)))
        for at, hole in enumerate(written):
            if not hole.is_json:
                _check_bare(hole.pattern, is_at_edge=not parts[2 * at] or not parts[2 * at + 2])
    return found


def _check_bare(source: str, *, is_at_edge: bool) -> None:
    """Refuse a pattern with a character that could not be written as it is."""
    alphabet = Automaton.of(pattern(source)).alphabet
    wrong = sorted(char for char in alphabet if char in '"\\' or not char.isprintable() or (is_at_edge and char == " "))
    if wrong:
        raise RenderError(f"pattern {source!r:.200} has {wrong[0]!r}, which a call cannot hold as it is")
