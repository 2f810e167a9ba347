"""Grammars over tokens: the calls a turn may be, listed, or spelled where an argument is no finite choice."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType

from kifu.errors import RenderError
from kifu.policy import Constraint
from kifu.records import Ints, Json, ToolCall, as_ints
from kifu.render.contract import ToolView
from kifu.render.dialects import Dialect
from kifu.render.dialects.base import properties, required
from kifu.render.spelling import CallGrammar, Form, Hole, forms_of
from kifu.render.tokenizer import ChatTokenizer, Level

MAX_CALLS = 100_000
_FIRST_MARK = 0xE000
"""Of the characters without a meaning; they stand for arguments while a call is written."""

_NOTHING = as_ints([])

# What JSON lets stand for a value that nobody limits: ASCII as it is, the rest as \u and four digits, but no half of a
# surrogate pair, because no text holds one alone.
_ESCAPED = r'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-f][0-9a-f]{3}|d[0-7][0-9a-f]{2}))'
_NUMBERS = {
    "integer": r"^-?(?:0|[1-9][0-9]{0,14})$",
    "number": r"^-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?$",
}
_FREE: Mapping[str, Mapping[str, str]] = {
    "json/1": {"string": rf'^"(?:[ !#-\[\]-~]|{_ESCAPED})*"$', **_NUMBERS},
    # `</` and `<t` could begin the mark that ends or opens a call
    "hermes/1": {
        "string": rf'^"(?:[ !#-;=-\[\]-~]|{_ESCAPED}|<+(?:[ !#-.0-;=-\[\]-su-~]|{_ESCAPED}))*<*"$',
        **_NUMBERS,
    },
}
"""By dialect and type: patterns of a value as it is written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTrie:
    """Implements `Constraint`: exactly one of a finite set of token sequences."""

    digest: str
    """SHA-256 over the sorted sequences."""
    _next: Mapping[tuple[int, ...], Ints] = field(repr=False)

    def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
        """``[S]`` ids that continue ``prefix``; empty when it is complete.

        Raises:
            RenderError: no sequence begins so.
        """
        found = self._next.get(tuple(prefix))
        if found is None:
            raise RenderError(f"no sequence of the grammar begins with {list(prefix)[:16]}")
        return found

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "TokenTrie":
        """Build from token sequences; none may be a prefix of another."""
        whole = sorted({tuple(int(token) for token in sequence) for sequence in sequences})
        if not whole or not whole[0]:
            raise RenderError("a grammar needs at least one text, and no empty one")
        children: dict[tuple[int, ...], set[int]] = {}
        for sequence in whole:
            for at, token in enumerate(sequence):
                children.setdefault(sequence[:at], set()).add(token)
        clash = next((sequence for sequence in whole if sequence in children), None)
        if clash is not None:
            raise RenderError(f"{list(clash)} is the beginning of another sequence; end every one with a stop token")
        table = {prefix: as_ints(sorted(tokens)) for prefix, tokens in children.items()}
        table.update(dict.fromkeys(whole, _NOTHING))
        digest = hashlib.sha256(json.dumps(whole, separators=(",", ":")).encode()).hexdigest()
        return cls(digest=digest, _next=MappingProxyType(table))

    @classmethod
    def build(cls, texts: Iterable[str], tokenizer: ChatTokenizer, *, end_id: int) -> "TokenTrie":
        """Build from texts, each in the tokenizer's canonical encoding and ended by ``end_id``."""
        return cls.of([*tokenizer.encode(text, Level.AUTHOR).tolist(), end_id] for text in texts)


def call_texts(dialect: Dialect, tools: Sequence[ToolView], *, limit: int = MAX_CALLS) -> list[str]:
    """Every text that is one call of one of the tools, in the dialect's own spelling.

    Raises:
        RenderError: no tools, a parameter without a finite set of values, or more than ``limit`` texts.
    """
    if not tools:
        raise RenderError("a grammar needs at least one tool; the phase allows none")
    size = 0
    for tool in tools:
        count = 1
        for choices in _choices(tool).values():
            count *= len(choices)
        size += count
    if size > limit:
        raise RenderError(f"the tools have {size} different calls, at most {limit} can be listed. Narrow the choices.")
    return sorted({dialect.format_call(call, tools) for tool in tools for call in _calls(tool)})


def call_grammar(dialect: Dialect, tools: Sequence[ToolView], tokenizer: ChatTokenizer, *, end_id: int) -> Constraint:
    """Exactly one call of one of the tools, ended by ``end_id``.

    An argument is one of its listed values, a text of its pattern, or any string or number where a dialect writes JSON.

    Raises:
        RenderError: as `call_texts`; or a pattern that cannot be read, or that a call cannot hold.
    """
    holes = [_holes(dialect, tool) for tool in tools]
    if not any(holes):
        return TokenTrie.build(call_texts(dialect, tools), tokenizer, end_id=end_id)
    forms: list[Form] = []
    for tool, found in zip(tools, holes, strict=True):
        marks = {name: chr(_FIRST_MARK + at) for at, name in enumerate(found)}
        changed: dict[str, Json] = {
            name: {**schema, "enum": [marks[name]]} if name in marks else dict(schema)
            for name, schema in properties(tool).items()
        }
        marked = replace(tool, parameters={**tool.parameters, "properties": changed})
        forms += forms_of(call_texts(dialect, [marked]), {marks[name]: hole for name, hole in found.items()})
    return CallGrammar(forms, tokenizer, end_id=end_id)


def _holes(dialect: Dialect, tool: ToolView) -> dict[str, Hole]:
    """What may stand for the parameters that have no list of values."""
    free = _FREE.get(dialect.name, {})
    found: dict[str, Hole] = {}
    for name, schema in properties(tool).items():
        kind = schema.get("type")
        if "enum" in schema:
            continue
        if kind == "string" and "pattern" in schema:
            found[name] = Hole(pattern=str(schema["pattern"]))
        elif isinstance(kind, str) and kind in free:
            found[name] = Hole(pattern=free[kind], is_json=True)
    return found


def _calls(tool: ToolView) -> Iterator[ToolCall]:
    choices = _choices(tool)
    for values in product(*choices.values()):
        given = {name: item[0] for name, item in zip(choices, values, strict=True) if item}
        yield ToolCall(name=tool.name, arguments=given)


def _choices(tool: ToolView) -> dict[str, list[tuple[Json, ...]]]:
    """For each parameter its values, one-element tuples; the empty tuple leaves an optional parameter out."""
    found: dict[str, list[tuple[Json, ...]]] = {}
    for name, schema in properties(tool).items():
        options = schema.get("enum")
        if schema.get("type") == "boolean" and options is None:
            options = [False, True]
        if not isinstance(options, list) or not options:
            raise RenderError(
                f"tool `{tool.name}`, parameter `{name}`: any {schema.get('type', 'value')} is possible, so its calls "
                "cannot be listed. Give it an `enum` (a Literal type), a `pattern`, a string or a number in a dialect "
                "that writes JSON (`json`, `hermes`), or decode without a grammar."
            )
        absent: list[tuple[Json, ...]] = [] if name in required(tool) or tool.command else [()]
        found[name] = [*((option,) for option in options), *absent]
    return found
