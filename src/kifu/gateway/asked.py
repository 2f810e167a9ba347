"""One call as it was asked for, in no dialect: conversation or prompt, tools, sampling, what the answer shall hold."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, TypeAlias

from kifu.gateway.said import Said
from kifu.records import Ints, Json
from kifu.render import ToolView

Api: TypeAlias = Literal["chat", "completions", "responses", "messages"]


class Choosing(StrEnum):
    """Whether a turn may, must or must not call a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the client asked to sample; None leaves the rollout's own value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    biased: Mapping[str, Json] = field(default_factory=dict)
    """Transforms that are no support (penalties, bias of logits), by the client's names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "biased", MappingProxyType(dict(self.biased)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the text of the answer must look like."""

    schema: Mapping[str, Json] | None = None
    """JSON Schema; None is any JSON object."""
    name: str = "json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """One call."""

    api: Api
    model: str
    messages: tuple[Said, ...] = ()
    prompt: str | Ints | None = None
    """Of a bare completion, instead of messages."""
    tools: tuple[ToolView, ...] = ()
    choosing: Choosing = Choosing.AUTO
    only: str | None = None
    """The one tool that must be called."""
    parallel: bool = True
    """Whether one turn may call several tools."""
    n: int = 1
    decoding: Decoding = field(default_factory=Decoding)
    form: Form | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    thinking: bool = False
    """Whether the answer shows thinking, in dialects where that is asked for."""
    token_ids: bool = False
    """Whether the answer names the ids of prompt and answer."""
    stream: bool = False
    usage_in_stream: bool = False
    inert: tuple[str, ...] = ()
    """Known fields that change nothing here."""
    unknown: tuple[str, ...] = ()
    """Fields nobody knows."""

    @property
    def tools_digest(self) -> str:
        """SHA-256 of the tools as the policy is told about them."""
        told = [[tool.name, tool.description, dict(tool.parameters)] for tool in self.tools]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
