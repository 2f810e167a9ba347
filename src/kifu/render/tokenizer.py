"""Text to ids and back for one model folder, with a trust boundary around control tokens.

A tokenizer's added tokens (``<|im_end|>``, ``<tool_call>``, ...) are recognised by us, and only in text that may hold
them; everything between two of them is encoded by a second tokenizer that does not know them. Where no content spells
an added token, the ids equal those of encoding the whole string at once.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache, partial
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer

from kifu.errors import RenderError
from kifu.records import Ints, Origin, as_ints
from kifu.render.contract import Piece

_PROBES = (
    "Hello, world! 12345",
    " leading and trailing  spaces ",
    "line\n\nbreaks\r\n\ttabs",
    "naïve Привет 棋譜 🙂👩‍🚀",
    '{"tool": "get", "n": [1, 2.5e-3]}',
)
_MAX_GROWTH = 1_000
"""Times a text may grow by what replaces its characters. Known tokenizers put one character in place of one."""
_SPACES = re.compile(r"\s*")
_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Level(IntEnum):
    """Which added tokens a stretch of text may turn into."""

    DATA = 0
    """None: observations and user text."""
    AUTHOR = 1
    """Those not marked special (``<think>``, ``<tool_call>``): system text and demonstrations."""
    TEMPLATE = 2
    """All: the chat template's own text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stretch of rendered text, or ids already known."""

    origin: Origin
    level: Level = Level.DATA
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    """Taken as they are instead of encoding ``text``."""
    quoted: tuple[str, ...] = ()
    """Strings of others inside ``text``, in which no added token is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A token recognised as a whole string."""

    id: int
    content: str
    is_special: bool
    eats_left: bool
    eats_right: bool


class _Text:
    """Consecutive chunks as one string."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.whole = "".join(chunk.text for chunk in chunks)
        self._starts = list(accumulate((len(chunk.text) for chunk in chunks), initial=0))

    def origin(self, start: int, stop: int) -> Origin:
        """Origin of the characters from ``start`` to ``stop``; TEMPLATE where one of several is."""
        one = bisect_right(self._starts, start) - 1
        if stop <= self._starts[one + 1]:
            return self.chunks[one].origin
        other = bisect_right(self._starts, max(stop - 1, start)) - 1
        origins = [chunk.origin for chunk in self.chunks[one : other + 1]]
        return Origin.TEMPLATE if Origin.TEMPLATE in origins else origins[0]


class _Matcher:
    """Finds added tokens from left to right, the longest of several.

    A regular expression would try all of them in turn, and a vocabulary of images or sounds has tens of thousands.
    """

    def __init__(self, tokens: Sequence[Added]) -> None:
        self._contents = frozenset(token.content for token in tokens)
        self._lengths = sorted(set(map(len, self._contents)), reverse=True)
        firsts = "".join(sorted({text[:1] for text in self._contents}))
        self._first = re.compile(f"[{re.escape(firsts)}]" if firsts else "(?!)")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where one begins and ends."""
        at = 0
        while first := self._first.search(text, at):
            start = first.start()
            parts = (text[start : start + length] for length in self._lengths)
            found = next((part for part in parts if part in self._contents), "")
            at = start + max(len(found), 1)
            if found:
                yield start, at


class ChatTokenizer:
    """The tokenizer of a model folder. Build it with `load_tokenizer`.

    Args:
        source: text of ``tokenizer.json``.
        config: content of ``tokenizer_config.json``.
        stop_ids: ids that end a turn by the model's generation config, besides the tokenizer's end token.
    """

    def __init__(self, *, source: str, config: Mapping[str, Any], stop_ids: Iterable[int] = ()) -> None:
        self._full = _parse(source)
        self.variables: Mapping[str, str] = MappingProxyType(_variables(config))
        unknown = {text for text in self.variables.values() if self._full.token_to_id(text) is not None}
        known = {token.content for token in self._full.get_added_tokens_decoder().values()}
        with _answering():
            self._full.add_special_tokens([AddedToken(text, normalized=False) for text in sorted(unknown - known)])
        _check_declared(self._full, config)
        self.added = _added(self._full)
        self.control_ids = frozenset(token.id for token in self.added)
        self._by_content = {token.content: token for token in self.added}
        self._matchers = {
            Level.AUTHOR: _Matcher([token for token in self.added if not token.is_special]),
            Level.TEMPLATE: _Matcher(self.added),
        }
        self._plain = _parse(_without_added(self.definition))
        eos = self.token_id(self.variables.get("eos_token", ""))
        self.stop_ids = tuple(sorted({*stop_ids} | ({eos} if eos is not None else set())))
        self.digest = hashlib.sha256(
            json.dumps([json.loads(self.definition), dict(self.variables), self.stop_ids], sort_keys=True).encode()
        ).hexdigest()
        # A padding may be longer than the memory, which would end the process; a prompt is neither padded nor cut.
        self._full.no_padding()
        self._full.no_truncation()
        self._is_writable = lru_cache(maxsize=65_536)(partial(_writes, self._plain))
        self._check_round_trip()

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._full.get_vocab_size(with_added_tokens=True))

    @cached_property
    def texts(self) -> Mapping[int, str]:
        """Text of every token that is not an added one, as it reads behind other text."""
        tokens = sorted(set(self._plain.get_vocab(with_added_tokens=False).values()) - self.control_ids)
        before = _encoded(self._plain, "a").ids
        with _answering():
            whole = self._plain.decode_batch([[*before, token] for token in tokens], skip_special_tokens=False)
        return MappingProxyType({token: text[1:] for token, text in zip(tokens, whole, strict=True)})

    @property
    def definition(self) -> str:
        """The whole tokenizer, in the form of ``tokenizer.json``."""
        with _answering():
            text: str = self._full.to_str()
        return text

    def token_id(self, text: str) -> int | None:
        """Id of a token by its text, or None."""
        found: int | None = self._full.token_to_id(text) if text else None
        return found

    def spells_added(self, text: str) -> bool:
        """Whether the text contains the spelling of an added token."""
        return any(token.content in text for token in self.added)

    def encode(self, text: str, level: Level = Level.DATA) -> Ints:
        """Ids of a text. By default nothing in it becomes an added token, whatever it spells."""
        return as_ints([token for token, _ in self._tokens([Chunk(origin=Origin.PROMPT, level=level, text=text)])])

    def encode_whole(self, text: str) -> Ints:
        """Ids by the model's own tokenizer, added tokens parsed wherever they are spelled: the reference."""
        return as_ints(_encoded(self._full, text).ids)

    def encode_chunks(self, chunks: Sequence[Chunk]) -> tuple[Piece, ...]:
        """Ids of consecutive chunks with the origin of each.

        Consecutive texts are encoded together, so that merges across their borders are those of the whole string. A
        token that spans two origins is TEMPLATE when one of them is, else it has the first one.
        """
        tokens: list[tuple[int, Origin]] = []
        for fixed, group in groupby(chunks, key=lambda chunk: chunk.token_ids is not None):
            items = list(group)
            if fixed:
                tokens += [(token, chunk.origin) for chunk in items for token in chunk.token_ids or ()]
            else:
                tokens += self._tokens(items)
        return tuple(
            Piece(origin=origin, token_ids=as_ints([token for token, _ in group]))
            for origin, group in groupby(tokens, key=lambda item: item[1])
        )

    def decode(self, token_ids: Sequence[int] | Ints) -> str:
        """Text of ids, added tokens spelled out."""
        return _decoded(self._full, [int(token) for token in token_ids])

    def _tokens(self, chunks: Sequence[Chunk]) -> list[tuple[int, Origin]]:
        text = _Text([self._writable(chunk) for chunk in chunks if chunk.text])
        found: list[tuple[int, Origin]] = []
        at = 0
        for start, stop, token in self._matches(text):
            found += self._segment(text, at, start)
            found.append((token, text.origin(start, start + 1)))
            at = stop
        return found + self._segment(text, at, len(text.whole))

    def _matches(self, text: "_Text") -> list[tuple[int, int, int]]:
        """Added tokens as (start, stop, id), each inside text that may hold it."""
        found: list[tuple[int, int, int]] = []
        at = 0
        for level, group in groupby(text.chunks, key=lambda chunk: chunk.level):
            members = list(group)
            run = "".join(chunk.text for chunk in members)
            is_quoted = _within(_occurrences(run, [string for chunk in members for string in chunk.quoted]))
            matcher = self._matchers.get(level)
            for first, last in matcher.spans(run) if matcher else ():
                if is_quoted(first, last):
                    continue
                token = self._by_content[run[first:last]]
                start, stop = at + first, at + last
                low = found[-1][1] if found else 0
                if token.eats_left:
                    start = low + len(text.whole[low:start].rstrip())
                if token.eats_right:
                    stop = _SPACES.match(text.whole, stop).end()  # type: ignore[union-attr]  # it matches nothing too
                if start >= low:
                    found.append((start, stop, token.id))
            at += len(run)
        return found

    def _segment(self, text: "_Text", begin: int, end: int) -> list[tuple[int, Origin]]:
        """Encode one stretch without added tokens and find each token's origin by its characters."""
        found: list[tuple[int, Origin]] = []
        left = [(begin, end)]  # the next one last
        while left:
            begin, end = left.pop()
            if begin >= end:
                continue
            encoding = _encoded(self._plain, text.whole[begin:end])
            tokens = list(zip(encoding.ids, encoding.offsets, strict=True))
            # Where the vocabulary itself spells a control token: break the spelling after its first character.
            cuts = {min(begin + first + 1, end - 1) for token, (first, _) in tokens if token in self.control_ids}
            if cuts and end - begin == 1:
                raise RenderError(f"the tokenizer writes the character {text.whole[begin]!r} as a control token")
            if cuts:
                left += reversed(list(pairwise([begin, *sorted(cuts), end])))
            else:
                found += [(token, text.origin(begin + first, begin + last)) for token, (first, last) in tokens]
        return found

    def _writable(self, chunk: Chunk) -> Chunk:
        r"""Replace characters the vocabulary cannot write by visible escapes such as ``\x04``."""
        if _decoded(self._plain, _encoded(self._plain, chunk.text).ids) == chunk.text:
            return chunk
        bad = {char for char in set(chunk.text) if not self._is_writable(char)}
        if bad and chunk.level is not Level.DATA:
            raise RenderError(
                f"the tokenizer drops {sorted(bad)[0]!r} from {chunk.origin} text; take the character out of it"
            )
        table = str.maketrans({char: char.encode("unicode_escape").decode() for char in bad})
        return replace(chunk, text=chunk.text.translate(table))

    def _check_round_trip(self) -> None:
        for text in _PROBES:
            found = self.decode(self.encode(text))
            if found != text:
                raise RenderError(
                    f"the tokenizer drops ids: {text!r} comes back as {found!r}. "
                    "A record needs a tokenizer that loses nothing; use another model."
                )
        for token in self.added:
            if self.decode([token.id]) != token.content:
                raise RenderError(
                    f"added token {token.content!r} (id {token.id}) decodes to {self.decode([token.id])!r}"
                )
        text = "".join(token.content + _PROBES[0] for token in self.added)
        if self.encode(text, Level.TEMPLATE).tolist() != self.encode_whole(text).tolist():
            raise RenderError(
                "the tokenizer encodes a piece differently from the whole string, so origins are not exact"
            )


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Load the tokenizer of a model folder: tokenizer.json, tokenizer_config.json, generation_config.json.

    Raises:
        RenderError: a file is missing or malformed, the tokenizer loses text, or an id is none of the model's.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise RenderError(f"{folder}: no tokenizer.json. Convert the tokenizer to the fast format first.")
    stops = _stops(folder)
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise RenderError(f"{path}: not text: {cause}") from cause
    _check_growth(source)
    _check_ids(source, stops, folder=folder)
    return ChatTokenizer(source=source, config=read_json(folder / "tokenizer_config.json"), stop_ids=stops)


def _stops(folder: Path) -> list[int]:
    """Ids that end a turn, of the first file that names one."""
    for name in ("generation_config.json", "config.json"):
        eos = read_json(folder / name).get("eos_token_id")
        found = eos if isinstance(eos, list) else [] if eos is None else [eos]
        for stop in found:
            if isinstance(stop, bool) or not isinstance(stop, int) or stop < 0:
                raise RenderError(
                    f"{folder / name}: eos_token_id {stop!r:.40} is no id of a token. Name the token that ends a turn "
                    "by its number."
                )
        if found:
            return found
    return []


def _check_ids(source: str, stops: Sequence[int], *, folder: Path) -> None:
    """Refuse ids the model has no embedding for."""
    config = read_json(folder / "config.json")
    nested = config.get("text_config")
    size = config.get("vocab_size", nested.get("vocab_size") if isinstance(nested, dict) else None)
    if not isinstance(size, int):
        return
    beyond = {id_: token for token, id_ in _parse(source).get_vocab().items() if id_ >= size}
    if beyond:
        first = min(beyond)
        raise RenderError(
            f"{folder / 'tokenizer.json'}: {len(beyond)} tokens have ids beyond the model's vocabulary, the first is "
            f"{beyond[first]!r:.60} with {first}; config.json says vocab_size {size}, so the last id is {size - 1}. "
            "Use the tokenizer that belongs to these weights, or resize the embeddings and save the model again."
        )
    wrong = [stop for stop in stops if stop >= size]
    if wrong:
        raise RenderError(
            f"{folder}: eos_token_id {wrong[0]!r:.40} of generation_config.json or config.json is no id of the model, "
            f"whose last one is {size - 1}. Name the token that ends a turn."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty one."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as cause:
        raise RenderError(f"{path}: not JSON: {cause}") from cause
    if not isinstance(found, dict):
        raise RenderError(f"{path}: found {type(found).__name__}, expected a JSON object")
    return found


@contextmanager
def _answering() -> Iterator[None]:
    """Make a `RenderError` of whatever the tokenizers library raises.

    Its errors are bare `Exception`; where a file holds what it never thought of it panics, and Rust's panics are no
    `Exception` at all.
    """
    try:
        yield
    except BaseException as cause:
        if not isinstance(cause, Exception) and type(cause).__name__ != "PanicException":
            raise
        raise RenderError(f"tokenizer.json is not a readable tokenizer: {cause!s:.500}") from cause


def _check_growth(source: str) -> None:
    """Refuse replacements that make a text many times as long: the library would end the process for want of memory."""
    try:
        parts = json.loads(source)
    except (ValueError, RecursionError):  # the library says better what is wrong
        return
    for name in ("normalizer", "decoder"):
        growth, left = 1, [parts.get(name)] if isinstance(parts, dict) else []
        while left:
            part = left.pop()
            if isinstance(part, list):
                left += part
            elif isinstance(part, dict):
                left += part.values()
                content = part.get("content")
                growth *= max(len(content), 1) if isinstance(content, str) else 1
        if growth > _MAX_GROWTH:
            raise RenderError(f"tokenizer.json: the {name} may make a text more than {_MAX_GROWTH} times as long")


def _parse(source: str) -> Tokenizer:
    with _answering():
        return Tokenizer.from_str(source)


def _encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    with _answering():
        return tokenizer.encode(text, add_special_tokens=False)


def _decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    with _answering():
        return str(tokenizer.decode(ids, skip_special_tokens=False))


def _variables(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _VARIABLES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            if not text.isascii() and text != text.encode(errors="replace").decode():
                raise RenderError(f"tokenizer_config.json: {name} {text!r:.60} is no text; write whole characters")
            found[name] = text
    return found


def _check_declared(full: Tokenizer, config: Mapping[str, Any]) -> None:
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict):
        raise RenderError(
            f"tokenizer_config.json, added_tokens_decoder: found {declared!r:.60}, expected tokens by their ids"
        )
    for number, token in declared.items():
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and str(full.token_to_id(content)) != number:
            raise RenderError(
                f"tokenizer_config.json declares {content!r:.60} as id {number:.20}, tokenizer.json has "
                f"{full.token_to_id(content)}. The two files do not belong together."
            )


def _added(full: Tokenizer) -> tuple[Added, ...]:
    found = []
    for number, token in sorted(full.get_added_tokens_decoder().items()):
        if token.single_word:
            raise RenderError(f"added token {token.content!r} matches whole words only; this is not supported")
        found.append(
            Added(
                id=number,
                content=token.content,
                is_special=token.special,
                eats_left=token.lstrip,
                eats_right=token.rstrip,
            )
        )
    return tuple(found)


def _occurrences(text: str, strings: Sequence[str]) -> list[tuple[int, int]]:
    return [match.span() for string in strings for match in re.finditer(re.escape(string), text)]


def _within(spans: Sequence[tuple[int, int]]) -> Callable[[int, int], bool]:
    """Whether a stretch lies inside one of many."""
    ordered = sorted(spans)
    furthest = list(accumulate((last for _, last in ordered), max))

    def is_within(start: int, stop: int) -> bool:
        before = bisect_right(ordered, start, key=lambda span: span[0])
        return before > 0 and stop <= furthest[before - 1]

    return is_within


def _writes(plain: Tokenizer, char: str) -> bool:
    """Whether a character comes back from its ids."""
    text = f"a{char}a"
    return _decoded(plain, _encoded(plain, text).ids) == text


def _without_added(source: str) -> str:
    parts = json.loads(source)
    parts["added_tokens"] = []
    parts["post_processor"] = None
    parts["truncation"] = None
    parts["padding"] = None
    return json.dumps(parts)
