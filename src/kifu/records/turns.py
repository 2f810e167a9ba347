"""One turn: what the policy wrote, what was executed, what the world answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import TypeAlias

from kifu.errors import RecordError

TOKEN_ENTROPY = "token_entropy"
STATE_KEPT = "state.kept"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Trust(StrEnum):
    """Whether an observation may carry hostile text. It never becomes system text."""

    TASK = "task"
    """Written by the task's author."""
    TOOL = "tool"
    """Returned by a tool; may quote anything."""
    OUTSIDE = "outside"
    """From the outside world: pages, mails, files of strangers."""


class Finish(StrEnum):
    """Why the sampler stopped writing a turn."""

    STOP = "stop"
    """A stop token or stop string was sampled, or the grammar was complete."""
    LENGTH = "length"
    """The turn's token limit."""
    CONTEXT = "context"
    """No room left in the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the policy asked for."""

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    id: str = ""
    """Names the call inside its turn; results refer to it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", MappingProxyType(dict(self.arguments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came back from one executed call, or from a turn that could not be parsed (``call`` is None)."""

    call: int | None
    """Index into the turn's executed calls."""
    text: str
    trust: Trust = Trust.TOOL
    exit_status: int | None = None
    error: str | None = None
    """A tool's own failure: an observation, and the episode goes on."""
    latency_s: float = 0.0
    """Wall seconds; measured, excluded from the content digest."""
    digest_before: str | None = None
    """State digest of the environment just before the call."""
    cut_bytes: int = 0
    """Bytes left out of ``text`` behind a visible marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The calls of a turn as sampled and as executed; they differ only with a rewriter named."""

    sampled: tuple[ToolCall, ...] = ()
    executed: tuple[ToolCall, ...] = ()
    rewriter: str | None = None
    """Id and version of the controller that changed the action."""
    parse_error: str | None = None

    def __post_init__(self) -> None:
        if self.sampled != self.executed and self.rewriter is None:
            raise RecordError("the executed action differs from the sampled one, so the rewriter must be named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of the information state or of memory: truncation, summary, fork, memory read or write.

    ``state.kept`` stands in a turn that other rollouts may branch from: the state before it, by its digest (``digest``)
    and by the blob that holds its snapshot (``blob``, null where it can only be replayed).
    """

    kind: str
    """``context.<what>``, ``memory.read`` / ``memory.write``, ``state.kept`` or ``capture.<what>``."""
    detail: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", MappingProxyType(dict(self.detail)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number somebody computed about a turn, with the weights that computed it."""

    name: str
    """``value``; ``entropy`` (nats, mean over the turn's tokens); ``gold_logprob`` and ``gold_logprob_after`` (nats,
    mean over the gold answer's tokens, given the history before the turn and after it); ``hindsight_logprob`` (nats,
    mean over the turn's tokens, given the history before it and how the episode ended); ``token_entropy`` (nats, of the
    distribution one token was sampled from; one for each of the turn's first sampled tokens, in order)."""
    value: float
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One assistant message and everything it caused."""

    index: int
    tape: int = 0
    start: int = 0
    """First position of the message's tokens in the tape's whole sequence."""
    stop: int = 0
    """Position after the last token of the message, its end-of-turn token included."""
    text: str = ""
    finish: Finish = Finish.STOP
    action: Action = field(default_factory=Action)
    results: tuple[ToolResult, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Reward components the environment paid in this turn; they enter training only with a weight."""
    potential: float | None = None
    """Potential of the state before the turn, for shaping."""
    seconds: float = 0.0
    """Wall time; measured, excluded from the content digest."""
    duration: float = 1.0
    """Duration in the task's own units."""
    state_key: str | None = None
    events: tuple[Event, ...] = ()
    estimates: tuple[Estimate, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise RecordError(f"turn {self.index}: range [{self.start}, {self.stop}) is not a range")
        for name, value in self.rewards.items():
            if not isfinite(value):
                raise RecordError(f"turn {self.index}: reward component `{name}` is {value}; it must be finite")
        if not self.duration > 0:
            raise RecordError(f"turn {self.index}: duration must be > 0 task units, found {self.duration}")
        object.__setattr__(self, "rewards", MappingProxyType(dict(self.rewards)))

    def estimate(self, name: str) -> float | None:
        """The latest estimate called ``name``, or None."""
        found = [item.value for item in self.estimates if item.name == name]
        return found[-1] if found else None

    @property
    def kept_state(self) -> tuple[str, str | None] | None:
        """Digest of the state before the turn and the blob with its snapshot; None where nobody noted it."""
        for event in self.events:
            if event.kind == STATE_KEPT:
                blob = event.detail["blob"]
                return str(event.detail["digest"]), None if blob is None else str(blob)
        return None

    @property
    def state_before(self) -> str | None:
        """Digest of the state before the turn, as noted or as the first answer tells it; None where neither does."""
        if self.kept_state is not None:
            return self.kept_state[0]
        return self.results[0].digest_before if self.results else None

    @property
    def token_entropies(self) -> tuple[float, ...]:
        """Nats, of the turn's first sampled tokens, as far as they were kept."""
        return tuple(item.value for item in self.estimates if item.name == TOKEN_ENTROPY)
