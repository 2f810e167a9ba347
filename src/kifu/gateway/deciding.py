"""The distribution a call is sampled from: what the client asked for and what the rollout fixes."""

import json
from dataclasses import dataclass, replace

from kifu.gateway.asked import Asked, Decoding
from kifu.gateway.refusal import Refusal
from kifu.gateway.settings import Serving
from kifu.records import Purpose, Sampling
from kifu.render import ChatRenderer
from kifu.render.dialects.hermes import CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How one call is sampled."""

    sampling: Sampling
    max_new_tokens: int
    overridden: tuple[str, ...] = ()
    """Fields of the client that the rollout's own values replaced."""
    withheld: str | None = None
    """Why the call is not trainable."""


def decide(asked: Asked, *, serving: Serving, purpose: Purpose, room: int, renderer: ChatRenderer) -> Decided:
    """Find a call's effective sampling.

    Args:
        asked: the call.
        serving: the rollout's own values.
        purpose: of the rollout; only rollouts for training withhold calls that cannot be trained on.
        room: tokens left in the context.
        renderer: of the model.

    Raises:
        Refusal: the sampler does not apply a transform that was asked for.
    """
    wanted = asked.decoding
    if asked.top_logprobs > serving.alternatives:
        name = "logprobs" if asked.api == "completions" else "top_logprobs"
        raise Refusal(
            f"{name}: found {asked.top_logprobs}; the sampler tells at most {serving.alternatives} alternatives to a "
            "token, ask for fewer",
            field=name,
            code="unsupported_value",
        )
    if wanted.biased and not serving.applies_biases:
        name = next(iter(wanted.biased))
        raise Refusal(
            f"{name}: the sampler does not apply it, and a call it was applied to could not be trained on; leave it "
            "out, or serve an engine that applies it",
            field=name,
            code="unsupported_value",
        )
    strangers = set(wanted.stop_ids) - set(renderer.stop_ids)
    if strangers:
        raise Refusal(
            f"stop_token_ids: {min(strangers)} does not end a turn of this model; the ids that do are "
            f"{list(renderer.stop_ids)}",
            field="stop_token_ids",
            code="unsupported_value",
        )
    base, overridden = _merge(serving, wanted)
    stops = wanted.stop
    if not asked.parallel and asked.tools and renderer.dialect.name.startswith("hermes/"):
        stops = (*stops, CLOSE)
    sampling = replace(
        base,
        stop_ids=renderer.stop_ids,
        stop_strings=stops,
        dialect=renderer.digests.parser,
        untrainable=tuple(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in wanted.biased.items()),
    )
    withheld = None
    if purpose is Purpose.TRAIN and not sampling.is_trainable:
        withheld = "greedy" if sampling.temperature is None else f"not a support: {', '.join(wanted.biased)}"
    limit = serving.max_new_tokens if wanted.max_tokens is None else min(wanted.max_tokens, serving.max_new_tokens)
    return Decided(sampling=sampling, max_new_tokens=min(limit, max(room, 1)), overridden=overridden, withheld=withheld)


def _merge(serving: Serving, wanted: Decoding) -> tuple[Sampling, tuple[str, ...]]:
    base = serving.sampling
    asked: dict[str, float | int | None] = {}
    if wanted.temperature is not None:
        asked["temperature"] = wanted.temperature or None
    if wanted.top_p is not None:
        asked["top_p"] = None if wanted.top_p >= 1.0 else wanted.top_p
    if wanted.top_k is not None:
        asked["top_k"] = wanted.top_k
    if wanted.min_p is not None:
        asked["min_p"] = wanted.min_p or None
    differing = tuple(name for name, value in asked.items() if getattr(base, name) != value)
    if serving.frozen:
        return base, differing
    return replace(base, **asked), ()  # type: ignore[arg-type]
