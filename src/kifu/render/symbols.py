"""Symbols as tokens, for small policies without a language: one id for each action, one for each observed symbol."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from kifu.errors import RenderError, nearest
from kifu.policy import Constraint
from kifu.records import Ints, Origin, ToolCall, as_ints
from kifu.render.contract import Digests, Extension, Message, Parsed, Piece, ToolView
from kifu.render.dialects.base import required

_NOTHING = as_ints([])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionSet:
    """Implements `Constraint`: one token out of a set, then the turn is complete."""

    ids: Ints
    """``[S]`` increasing."""

    @property
    def digest(self) -> str:
        """SHA-256 over the ids."""
        return hashlib.sha256(json.dumps(self.ids.tolist()).encode()).hexdigest()

    def allowed(self, prefix: tuple[int, ...]) -> Ints:
        """``[S]`` the set at the beginning, nothing afterwards."""
        return _NOTHING if prefix else self.ids


@dataclass(frozen=True, kw_only=True)
class SymbolRenderer:
    """Implements `Renderer` without a template: ids 0..A-1 are the actions, the symbols follow.

    Observations are split at white space. System text and examples are not shown: there is no symbol for them.
    """

    actions: tuple[str, ...]
    """Names of the tools, none with required parameters; an action is one token and a whole turn."""
    vocabulary: tuple[str, ...]
    """Every symbol an observation can hold."""
    _ids: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, names in (("action", self.actions), ("symbol", self.vocabulary)):
            if not names or len(set(names)) != len(names):
                raise RenderError(f"the {what}s must be given, each once; found {list(names)[:16]}")
        broken = [symbol for symbol in self.vocabulary if symbol.split() != [symbol]]
        if broken:
            raise RenderError(f"symbol {broken[0]!r} is not one word; observations are split at white space")
        self._ids.update({symbol: len(self.actions) + at for at, symbol in enumerate(self.vocabulary)})

    @property
    def vocab_size(self) -> int:
        """Number of ids: actions and symbols."""
        return len(self.actions) + len(self.vocabulary)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every action ends its turn."""
        return tuple(range(len(self.actions)))

    @property
    def digests(self) -> Digests:
        """The lists of symbols and of actions stand for tokenizer and parser."""
        names = json.dumps([self.actions, self.vocabulary], ensure_ascii=False)
        return Digests(tokenizer=hashlib.sha256(names.encode()).hexdigest(), template="symbols/1", parser="symbols/1")

    def start(self, messages: Sequence[Message], tools: Sequence[ToolView]) -> tuple[Piece, ...]:
        """Ids of the last user message, the first observation."""
        self._check(tools)
        shown = [message.content for message in messages if message.role == "user"]
        piece = self._piece(shown[-1] if shown else "", Origin.PROMPT)
        if not piece.token_ids.size:
            raise RenderError("the first observation holds no symbol, so there is no context; show at least one")
        return (piece,)

    def extend(
        self,
        token_ids: Ints,
        history: Sequence[Message],
        results: Sequence[str],
        *,
        ended: bool,
        tools: Sequence[ToolView] = (),
    ) -> Extension:
        """Ids of the symbols in ``results``; nothing stands between turns."""
        pieces = (self._piece(text, Origin.ENVIRONMENT) for text in results)
        return Extension(pieces=tuple(piece for piece in pieces if piece.token_ids.size))

    def parse(self, token_ids: Ints, tools: Sequence[ToolView]) -> Parsed:
        """The one action of a turn."""
        ids = token_ids.tolist()
        if len(ids) != 1 or ids[0] >= len(self.actions):
            return Parsed(text=self.decode(ids), error=f"a turn is one action of {', '.join(self.actions)}.")
        name = self.actions[ids[0]]
        if name not in {tool.name for tool in tools}:
            return Parsed(text=name, error=f"no tool `{name}` now.")
        return Parsed(text=name, calls=(ToolCall(name=name),))

    def constraint(self, tools: Sequence[ToolView], allowed: Sequence[str] | None) -> Constraint:
        """The actions that are tools now and that the phase allows."""
        names = {tool.name for tool in tools if allowed is None or tool.name in allowed}
        ids = [at for at, name in enumerate(self.actions) if name in names]
        if not ids:
            raise RenderError(f"the phase allows no action; tools now: {sorted(tool.name for tool in tools)}")
        return ActionSet(ids=as_ints(ids))

    def compose(self, calls: Sequence[ToolCall], tools: Sequence[ToolView]) -> Ints:
        """The id of the one call."""
        if len(calls) != 1 or calls[0].arguments or calls[0].name not in self.actions:
            raise RenderError(f"symbols write one call without arguments a turn, found {[call.name for call in calls]}")
        return as_ints([self.actions.index(calls[0].name)])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Names of actions and symbols, separated by spaces."""
        names = (*self.actions, *self.vocabulary)
        return " ".join(names[token] if token < len(names) else f"?{token}" for token in token_ids)

    def _piece(self, text: str, origin: Origin) -> Piece:
        for symbol in text.split():
            if symbol not in self._ids:
                raise RenderError(
                    f"unknown symbol in observation {text[:80]!r}: {symbol[:80]!r}; "
                    f"{nearest(symbol[:80], list(self.vocabulary))} Add it to the vocabulary."
                )
        return Piece(origin=origin, token_ids=as_ints([self._ids[symbol] for symbol in text.split()]))

    def _check(self, tools: Sequence[ToolView]) -> None:
        for tool in tools:
            if tool.name not in self.actions:
                raise RenderError(f"tool `{tool.name}` has no action; {nearest(tool.name, list(self.actions))}")
            if required(tool):
                raise RenderError(f"tool `{tool.name}` needs `{required(tool)[0]}`; a symbolic action has no arguments")
