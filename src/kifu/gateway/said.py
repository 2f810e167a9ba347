"""Messages as they stand on the wire, whatever the dialect, and when two of them are the same message."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kifu.records import Json
from kifu.render.dialects.base import read_object

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

_EXACT = 2**53
"""Integers up to here are exact as floats, so ``1`` and ``1.0`` are one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCall:
    """A tool call in an assistant message."""

    id: str
    name: str
    arguments: str
    """JSON text, as spelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a conversation. Content parts are joined; what the role does not use is empty."""

    role: Role
    content: str = ""
    calls: tuple[SaidCall, ...] = ()
    reasoning: str | None = None
    """Most clients do not send it back, so it never decides whether two messages are the same."""
    answers: str = ""
    """Id of the call a tool message answers."""
    id: str = ""
    """Id the gateway gave the message, where the dialect sends it back."""

    def key(self) -> str:
        """Equal for messages that are the same up to ids, thinking and the spelling of JSON arguments."""
        calls = [[call.name, plain_arguments(call.arguments)] for call in self.calls]
        return _digest([self.role, self.content, calls])

    def is_spelled_as(self, other: "Said") -> bool:
        """Whether the arguments of the calls are the same characters, given that the keys agree."""
        return [call.arguments for call in self.calls] == [call.arguments for call in other.calls]

    def to_json(self) -> dict[str, Json]:
        """As it is logged."""
        return {
            "role": self.role,
            "content": self.content,
            "calls": [[call.id, call.name, call.arguments] for call in self.calls],
            "reasoning": self.reasoning,
            "answers": self.answers,
            "id": self.id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Said":
        """Read what `to_json` wrote."""
        fields = dict(value)
        calls = fields.pop("calls")
        assert isinstance(calls, list)
        read = tuple(SaidCall(id=item[0], name=item[1], arguments=item[2]) for item in calls)
        return cls(calls=read, **fields)  # type: ignore[arg-type]


def plain_arguments(text: str) -> str:
    """One spelling for all that are equal as JSON objects; text that is not one stands for itself."""
    try:
        found = read_object(text)
    except (ValueError, RecursionError):
        return f"?{text}"
    return json.dumps(_plain(found), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def joined(messages: Sequence[Said]) -> str:
    """Digest of a conversation up to ids and spelling."""
    return _digest([message.key() for message in messages])


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
