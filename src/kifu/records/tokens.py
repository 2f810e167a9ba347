"""Tokens and who wrote them: origins, sampling distributions, supports, spans, tapes.

Axes: ``N`` tokens of a span, ``T`` token positions of a tape, ``S`` ids of a support.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kifu.errors import RecordError

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]


def as_ints(values: Sequence[int] | npt.NDArray[Any]) -> Ints:
    """Copy to a read-only int32 array; a value that does not fit is an error."""
    wide = np.asarray(values, dtype=np.int64).reshape(-1)
    if wide.size and (wide.min() < 0 or wide.max() > np.iinfo(np.int32).max):
        raise RecordError(f"token ids must lie in [0, 2^31), found {wide.min()} to {wide.max()}")
    array = wide.astype(np.int32)
    array.flags.writeable = False
    return array


def as_floats(values: Sequence[float] | npt.NDArray[Any]) -> Floats:
    """Copy to a read-only float32 array."""
    array = np.array(values, dtype=np.float32).reshape(-1)
    array.flags.writeable = False
    return array


class Origin(StrEnum):
    """Who produced a token. A new member is a change of record format."""

    POLICY = "policy"
    """Sampled by the policy under training."""
    ENVIRONMENT = "environment"
    """Returned by a tool or a simulated user."""
    PROMPT = "prompt"
    """Task text: system and user messages."""
    TEMPLATE = "template"
    """Chat-template scaffolding: role tags, separators, the generation prompt."""
    CONTROLLER = "controller"
    """Put in by a deterministic strategy or client, or forced by a grammar."""
    FRAMEWORK = "framework"
    """Put in by kifu, e.g. the end-of-turn token after a turn that was cut."""
    DEMONSTRATION = "demonstration"
    """An expert's or a script's; trainable by likelihood or preference, never by a ratio."""
    EXTERNAL = "external"
    """Another model's text without ids or logprobs; evaluation only."""


class SupportKind(StrEnum):
    """How the set of tokens that could have been sampled is written down."""

    IDS = "ids"
    NOT_IDS = "not_ids"
    MASK = "mask"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Support:
    """The set of tokens that could have been sampled at one position, where it is not the whole vocabulary."""

    kind: SupportKind
    ids: Ints
    """``[S]`` strictly increasing. The kept ids (IDS), the excluded ids (NOT_IDS), or empty (MASK)."""
    mask: str | None = None
    """Digest of a bitmap in the run's table of bitmaps (MASK only)."""

    def __post_init__(self) -> None:
        if (self.kind is SupportKind.MASK) != (self.mask is not None):
            raise RecordError(f"support of kind {self.kind}: `mask` must be given for MASK and only for MASK")
        if self.ids.size > 1 and not bool((np.diff(self.ids) > 0).all()):
            raise RecordError("support ids must be strictly increasing; sort them and drop repeats")
        if self.kind is SupportKind.IDS and self.ids.size == 0:
            raise RecordError("a support of kind ids must keep at least one token")

    @classmethod
    def of(cls, ids: Sequence[int] | npt.NDArray[Any]) -> "Support":
        """Build the support that keeps exactly ``ids`` (any order)."""
        return cls(kind=SupportKind.IDS, ids=as_ints(np.unique(np.asarray(ids, dtype=np.int64))))

    def contains(self, token: int) -> bool | None:
        """Whether ``token`` could have been sampled; None when only the table of bitmaps can tell."""
        if self.kind is SupportKind.MASK:
            return None
        at = int(np.searchsorted(self.ids, token))
        found = at < self.ids.size and int(self.ids[at]) == token
        return found if self.kind is SupportKind.IDS else not found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The distribution tokens were sampled from, complete enough to evaluate it again."""

    temperature: float | None = 1.0
    """Divides the logits; None is greedy: the argmax is taken and logprobs are those at temperature 1."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    grammar: str | None = None
    """Digest of the constraint that limited the tokens."""
    dialect: str | None = None
    """Name and version of the tool-call dialect whose parser turned the tokens into an action."""
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    stream: str = ""
    """Key of the counter-based random stream; the counter is (turn, position)."""
    engine: str = ""
    """Engine and numerics, e.g. ``hf/cpu``."""
    dtype: str = "float32"
    untrainable: tuple[str, ...] = ()
    """Transforms in force that are not a support (repetition penalty, logit bias): evaluation only."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0.0 < self.temperature < float("inf"):
            raise RecordError(f"temperature must be finite and > 0, found {self.temperature}; None means greedy")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise RecordError(f"top_p must lie in (0, 1], found {self.top_p}")
        if self.top_k is not None and self.top_k < 1:
            raise RecordError(f"top_k must be at least 1, found {self.top_k}; None means no limit")
        if self.min_p is not None and not 0.0 <= self.min_p < 1.0:
            raise RecordError(f"min_p must lie in [0, 1), found {self.min_p}")

    @property
    def is_trainable(self) -> bool:
        """Whether a ratio may be taken over tokens sampled this way."""
        return self.temperature is not None and not self.untrainable

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of every field."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """A run of consecutive tokens of one tape with one origin.

    A POLICY span exists only with a logprob per token, a policy version and the sampling distribution; no other span
    has any of them.
    """

    origin: Origin
    turn: int
    """0-based turn the tokens belong to; the first prompt belongs to turn 0."""
    token_ids: Ints
    """``[N]`` ids exactly as the model saw or sampled them, never re-tokenized."""
    logprobs: Floats | None = None
    """``[N]`` nats, <= 0, under the distribution actually sampled from."""
    policy_version: int | None = None
    """Number of publishes before the weights that sampled the span."""
    sampling: Sampling | None = None
    support: tuple[Support | None, ...] | None = None
    """``[N]``; None at a position means the whole vocabulary, None for all means so everywhere."""

    def __post_init__(self) -> None:
        where = f"{self.origin} span of turn {self.turn}"
        if self.turn < 0:
            raise RecordError(f"{where}: turn must be >= 0")
        if self.token_ids.dtype != np.int32 or self.token_ids.flags.writeable:
            raise RecordError(f"{where}: token ids must be a read-only int32 array; build them with as_ints")
        extras = (self.logprobs, self.policy_version, self.sampling, self.support)
        if self.origin is not Origin.POLICY:
            if any(extra is not None for extra in extras):
                raise RecordError(f"{where}: only a policy span has logprobs, policy_version, sampling or support")
            return
        if self.logprobs is None or self.policy_version is None or self.sampling is None:
            raise RecordError(f"{where}: needs logprobs, policy_version and sampling; without them it is not POLICY")
        _check_policy(self, where)

    def __len__(self) -> int:
        return int(self.token_ids.size)


def _check_policy(span: Span, where: str) -> None:
    logprobs, count = span.logprobs, len(span)
    assert logprobs is not None
    assert span.policy_version is not None
    if logprobs.dtype != np.float32 or logprobs.flags.writeable:
        raise RecordError(f"{where}: logprobs must be a read-only float32 array; build them with as_floats")
    if logprobs.size != count:
        raise RecordError(
            f"{where}: {logprobs.size} logprobs for {count} tokens. A stop token the engine dropped is the usual cause."
        )
    if not bool(np.isfinite(logprobs).all()) or bool((logprobs > 0).any()):
        raise RecordError(f"{where}: logprobs must be finite and <= 0, found {logprobs.tolist()[:8]}")
    if span.policy_version < 0:
        raise RecordError(f"{where}: policy_version must be >= 0, found {span.policy_version}")
    if span.support is not None:
        _check_support(span, span.support, where)


def _check_support(span: Span, supports: tuple[Support | None, ...], where: str) -> None:
    if len(supports) != len(span):
        raise RecordError(f"{where}: {len(supports)} supports for {len(span)} tokens")
    for at, support in enumerate(supports):
        if support is None:
            continue
        token = int(span.token_ids[at])
        if support.contains(token) is False:
            raise RecordError(f"{where}: sampled id {token} at {at} is outside its own support")
        if support.kind is SupportKind.IDS and support.ids.size == 1:
            raise RecordError(f"{where}: token {at} had one choice, so nobody sampled it: its origin is CONTROLLER")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tape:
    """The exact token sequence one context held.

    A tape made by compaction, a sub-agent, edited history or a branch names its parent and the position where it
    leaves it; it shares the parent's first ``fork_at`` tokens and its own spans follow. Tokens before the fork are
    trained on the parent only.
    """

    spans: tuple[Span, ...]
    parent: int | None = None
    """Index of the parent tape in the trajectory."""
    fork_at: int = 0
    """Tokens shared with the parent's whole sequence; 0 without a parent."""

    def __post_init__(self) -> None:
        if self.parent is None and self.fork_at:
            raise RecordError(f"a tape without a parent cannot fork at {self.fork_at}")
        if self.fork_at < 0:
            raise RecordError(f"fork_at must be >= 0, found {self.fork_at}")
        if any(len(span) == 0 for span in self.spans):
            raise RecordError("a tape holds no empty spans; leave them out")

    def __len__(self) -> int:
        return self.fork_at + sum(len(span) for span in self.spans)
