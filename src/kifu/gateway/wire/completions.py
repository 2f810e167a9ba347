"""``/v1/completions``: a bare prompt, as text or as ids."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from kifu.gateway.asked import Api, Asked, Decoding
from kifu.gateway.captured import Choice
from kifu.gateway.refusal import Refusal
from kifu.gateway.settings import Limits
from kifu.gateway.wire.chat import BIASED, INERT, Probability, top_k_of, usage
from kifu.gateway.wire.contract import (
    Answer,
    Event,
    Fields,
    Strict,
    check_count,
    check_stops,
    finish_reason,
    openai_error,
    sort_fields,
    text_pieces,
    told_ids,
    validate,
)
from kifu.records import as_ints

FIELDS = Fields(
    inert=INERT | {"add_special_tokens", "include_stop_str_in_output"},
    refused={
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "min_tokens": (0,),
        "ignore_eos": (False,),
        "response_format": ({"type": "text"},),
    },
    biased=BIASED,
)
DEFAULT_TOKENS = 16


class _StreamOptions(Strict):
    include_usage: bool | None = None


class CompletionsBody(Strict):
    """What is honoured."""

    model: str
    prompt: str | list[int] | list[str] | list[list[int]]
    n: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None


class Completions:
    """Implements `Dialect`."""

    api: Api = "completions"

    def read(self, body: Mapping[str, Any], limits: Limits) -> Asked:
        """Understand a body."""
        asked = validate(CompletionsBody, body)
        found = sort_fields(body, honoured=CompletionsBody, fields=FIELDS)
        prompt = asked.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) != 1:
                raise Refusal(f"prompt: found {len(prompt)} prompts, expected one a call", field="prompt")
            prompt = prompt[0]
        if isinstance(prompt, list) and not all(
            isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in prompt
        ):
            raise Refusal("prompt: ids must be integers from 0 to 2^31", field="prompt", code="invalid_value")
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        stream = bool(asked.stream)
        return Asked(
            api=self.api,
            model=asked.model,
            prompt=prompt if isinstance(prompt, str) else as_ints([int(str(token)) for token in prompt]),
            n=check_count(1 if asked.n is None else asked.n, limits.choices, field="n"),
            decoding=Decoding(
                temperature=asked.temperature,
                top_p=asked.top_p,
                top_k=top_k_of(asked.top_k),
                min_p=asked.min_p,
                max_tokens=asked.max_tokens or DEFAULT_TOKENS,
                stop=check_stops(stops, limits, field="stop"),
                stop_ids=tuple(asked.stop_token_ids or ()),
                seed=asked.seed,
                biased=found.biased,
            ),
            logprobs=asked.logprobs is not None,
            top_logprobs=(asked.logprobs or 0) if (asked.logprobs or 0) > 1 else 0,
            token_ids=bool(asked.return_token_ids),
            stream=stream,
            usage_in_stream=stream and bool(asked.stream_options and asked.stream_options.include_usage),
            inert=found.inert,
            unknown=found.unknown,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The body of the answer."""
        choices = [
            {"text": choice.said.content, **_choice(answer, choice, at)} for at, choice in enumerate(answer.choices)
        ]
        return {**_head(answer), "choices": choices, "usage": usage(answer)}

    def opening(self, answer: Answer) -> Iterator[Event]:
        """Nothing."""
        del answer
        return iter(())

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Texts, then the reason of each, usage, ``[DONE]``."""
        for at, choice in enumerate(answer.choices):
            for piece in text_pieces(choice.said.content):
                body = {"text": piece, "index": at, "finish_reason": None, "logprobs": None}
                yield Event(data={**_head(answer), "choices": [body]})
            yield Event(data={**_head(answer), "choices": [{"text": "", **_choice(answer, choice, at)}]})
        if answer.asked.usage_in_stream:
            yield Event(data={**_head(answer), "choices": [], "usage": usage(answer)})
        yield Event(data="[DONE]")

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error."""
        return openai_error(refusal)


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answer.id}",
        "object": "text_completion",
        "created": int(answer.created),
        "model": answer.asked.model,
    }


def _choice(answer: Answer, choice: Choice, at: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": at,
        "finish_reason": "length" if finish_reason(choice) == "length" else "stop",
        "logprobs": _logprobs(answer, choice),
    }
    if answer.asked.token_ids:
        found |= {
            "token_ids": told_ids(choice),
            "prompt_token_ids": list(answer.prompt_ids),
            "policy_version": choice.generation.policy_version,
        }
    return found


def _logprobs(answer: Answer, choice: Choice) -> dict[str, Any] | None:
    if not answer.asked.logprobs:
        return None
    made, tokenizer = choice.generation, answer.renderer.tokenizer
    texts = [tokenizer.decode([token]) for token in told_ids(choice)]
    offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
    values = [float(logprob) if sampled else None for sampled, logprob in zip(made.sampled, made.logprobs, strict=True)]
    return {
        "tokens": texts,
        "token_logprobs": values,
        "top_logprobs": _likeliest(answer, choice, texts),
        "text_offset": offsets,
    }


def _likeliest(answer: Answer, choice: Choice, texts: list[str]) -> list[dict[str, float]] | None:
    """For each token the likeliest texts and its own, with their logprobs; of two ids with one text, the likelier."""
    made, decode = choice.generation, answer.renderer.tokenizer.decode
    if made.alternatives is None:
        return None
    found = []
    for at, others in enumerate(made.alternatives):
        own = {texts[at]: float(made.logprobs[at])} if made.sampled[at] else {}
        found.append({**own, **{decode([token]): nats for token, nats in reversed(others)}})
    return found
