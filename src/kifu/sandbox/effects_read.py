"""What a log of effects says, line by line, for whoever counts it; `check_effects` says whether it was changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kifu.errors import AlteredError, StorageError
from kifu.records import Json
from kifu.sandbox.effects import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLine:
    """The content of one line."""

    chain: str
    phase: Phase
    kind: str
    tool: str
    arguments: Mapping[str, Json]
    facts: Mapping[str, Json]
    digest: str = ""
    """Of the content; an end names its beginning by it."""


def read_effects(path: Path) -> tuple[EffectLine, ...]:
    """Every whole line, in order; a file that is missing has none.

    Raises:
        StorageError: it cannot be read.
        AlteredError: a line is none of a log of effects.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read: {cause.strerror}") from cause
    return tuple(_line(text, path=path, number=number) for number, text in enumerate(data.split(b"\n")[:-1], start=1))


def _line(text: bytes, *, path: Path, number: int) -> EffectLine:
    try:
        fields = json.loads(text)
        content = fields["content"]
        arguments, facts = content["arguments"], content["facts"]
        if not isinstance(arguments, dict) or not isinstance(facts, dict):
            raise ValueError("arguments and facts are no objects")
        return EffectLine(
            chain=str(content["chain"]),
            phase=Phase(content["phase"]),
            kind=str(content["kind"]),
            tool=str(content["tool"]),
            arguments=arguments,
            facts=facts,
            digest=str(fields.get("digest")),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise AlteredError(
            f"{path}: line {number} is {text[:60]!r}, no line of a log of effects; `kifu audit` says what was changed"
        ) from cause
