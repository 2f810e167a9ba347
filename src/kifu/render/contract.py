"""What a rollout needs from a renderer: conversations to tokens with origins, tokens back to actions.

A renderer is stateless; the rollout keeps the conversation and the exact ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kifu.policy import Constraint
from kifu.records import Ints, Json, Origin, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """One tool as the policy is told about it; the rollout makes it from the environment's spec."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON Schema of an object."""
    command: str | None = None
    """Template of the command dialect, e.g. ``pickup {color} key``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a conversation, as text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant message."""
    by_controller: bool = False
    """Whether a controller put the content in place of what was said."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Consecutive tokens with one origin."""

    origin: Origin
    token_ids: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extension:
    """How the context goes on after a turn."""

    pieces: tuple[Piece, ...]
    """Tokens to append, the next generation prompt included."""
    fork_at: int | None = None
    """None appends to the exact previous ids. Otherwise the template rewrites history: the next context shares only
    the first ``fork_at`` tokens with the previous one and goes on with ``pieces``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A turn as an action."""

    text: str
    """The turn's text without its end token."""
    calls: tuple[ToolCall, ...] = ()
    error: str | None = None
    """Why a call could not be read; shown to the policy as an observation, never a silent final answer."""
    reasoning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Names of what turned text into tokens and tokens into actions."""

    tokenizer: str
    template: str
    parser: str
    extra: Mapping[str, str] = field(default_factory=dict)


class Renderer(Protocol):
    """Both the chat renderer of language models and the symbol renderer of toy policies."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    @property
    def digests(self) -> Digests:
        """What goes into the record's provenance and the protocol."""
        ...

    def start(self, messages: Sequence[Message], tools: Sequence[ToolView]) -> tuple[Piece, ...]:
        """Tokens of a fresh conversation, generation prompt included. Assistant messages in it are PROMPT text."""
        ...

    def extend(
        self,
        token_ids: Ints,
        history: Sequence[Message],
        results: Sequence[str],
        *,
        ended: bool,
        tools: Sequence[ToolView] = (),
    ) -> Extension:
        """Tokens that show ``results`` after the policy's last turn.

        Args:
            token_ids: the whole context, the policy's last turn included.
            history: the conversation so far, the policy's last turn as its last message.
            results: what to show, in call order; text of a parse error when nothing could be called.
            ended: whether the turn ended with a stop token; if not, one is put in as FRAMEWORK.
            tools: those given to `start`; needed where the template rewrites history, so that the context forks.
        """
        ...

    def parse(self, token_ids: Ints, tools: Sequence[ToolView]) -> Parsed:
        """Read a turn's ids, its stop token included if there is one."""
        ...

    def constraint(self, tools: Sequence[ToolView], allowed: Sequence[str] | None) -> Constraint:
        """Grammar of the texts that are a call of an allowed tool."""
        ...

    def compose(self, calls: Sequence[ToolCall], tools: Sequence[ToolView]) -> Ints:
        """Ids of a turn that makes ``calls``, stop token included: how a demonstration is written down."""
        ...
