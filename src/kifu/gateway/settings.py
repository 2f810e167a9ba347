"""What a gateway serves and what it allows."""

from dataclasses import dataclass, field

from kifu.records import Provenance, Sampling

ALTERNATIVES = 20
"""Likeliest tokens that a call may ask for where the sampler is our own; OpenAI's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Everything a client could grow without end."""

    body_bytes: int = 8 * 1024 * 1024
    depth: int = 64
    """Nesting of the JSON of a body."""
    choices: int = 16
    """``n`` of one call."""
    stop_strings: int = 8
    stop_chars: int = 128
    tools: int = 256
    messages: int = 10_000
    calls_per_rollout: int = 64
    """Calls of one rollout that are under way at once."""
    calls: int = 1024
    """Calls under way at once, of all rollouts."""
    rollouts: int = 100_000
    """Open at once."""
    spans: int = 10_000
    """Of one rollout, as its agent reports them."""
    read_s: float = 30.0
    """For the whole body of a call to arrive."""
    call_s: float = 600.0
    """For a call to be answered."""
    send_s: float = 30.0
    """For a client to take one piece of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How every rollout of a gateway samples unless it says otherwise."""

    models: tuple[str, ...] = ("kifu",)
    """Names that calls may ask for; all are the one policy."""
    sampling: Sampling = field(default_factory=Sampling)
    frozen: bool = True
    """Whether the rollout's own temperature, top_p, top_k and min_p win over what a client asks for."""
    max_new_tokens: int = 512
    """Of a call that names no limit, and the most that one can name."""
    max_context: int = 2048
    vocabulary: int = 0
    """Number of ids; 0 takes the tokenizer's."""
    applies_biases: bool = False
    """Whether the sampler applies repetition penalties and logit biases; without it they are refused."""
    alternatives: int = 0
    """Most likely tokens that a call may ask for beside each sampled one (``top_logprobs``); 0 where the sampler
    tells none."""
    provenance: Provenance = field(default_factory=Provenance)
    limits: Limits = field(default_factory=Limits)
