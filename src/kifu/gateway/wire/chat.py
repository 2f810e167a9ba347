"""``/v1/chat/completions``."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from kifu.gateway.asked import Api, Asked, Choosing, Decoding, Form
from kifu.gateway.captured import Choice
from kifu.gateway.refusal import Refusal
from kifu.gateway.said import Said, SaidCall
from kifu.gateway.settings import Limits
from kifu.gateway.wire.contract import (
    Answer,
    Event,
    Fields,
    ItemsLike,
    Sorted,
    Strict,
    check_count,
    check_messages,
    check_stops,
    check_tools,
    finish_reason,
    openai_error,
    sort_fields,
    text_pieces,
    told_ids,
    told_logprobs,
    tool_view,
    validate,
)
from kifu.gateway.wire.parts import joined_text
from kifu.render import ToolView

BIASED: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}
INERT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"verbosity", "reasoning_effort", "skip_special_tokens", "spaces_between_special_tokens"}
)
FIELDS = Fields(
    inert=INERT,
    refused={
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "echo": (False,),
        "best_of": (1,),
        "min_tokens": (0,),
        "ignore_eos": (False,),
        "stop_token_ids": ([],),
    },
    biased=BIASED,
)
_MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "name"})

Probability = Annotated[float, Field(gt=0.0, le=1.0)]


class _Function(Strict):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(Strict):
    type: Literal["function"]
    function: _Function


class _CalledFunction(Strict):
    name: str
    arguments: str


class _ToolCall(Strict):
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Schema(Strict):
    name: str = "json"
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _StreamOptions(Strict):
    include_usage: bool | None = None


class ChatBody(Strict):
    """What is honoured."""

    model: str
    messages: Annotated[list[dict[str, Any]], ItemsLike(_Message)]
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    n: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: _ResponseFormat | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None


class Chat:
    """Implements `Dialect`."""

    api: Api = "chat"

    def read(self, body: Mapping[str, Any], limits: Limits) -> Asked:
        """Understand a body."""
        asked = validate(ChatBody, body)
        found = sort_fields(body, honoured=ChatBody, fields=FIELDS)
        check_messages(len(asked.messages), limits, field="messages")
        strange: list[str] = []
        messages = tuple(_said(item, at, strange) for at, item in enumerate(asked.messages))
        tools = [
            tool_view(
                item.function.name, item.function.description, item.function.parameters, where=f"tools.{at}.function"
            )
            for at, item in enumerate(asked.tools or ())
        ]
        strict = any(item.function.strict for item in asked.tools or ())
        if asked.top_logprobs and not asked.logprobs:
            raise Refusal("top_logprobs: needs `logprobs: true`", field="top_logprobs", code="invalid_value")
        choosing, only = choice_of(asked.tool_choice, tools, key="function")
        stream = bool(asked.stream)
        return Asked(
            api=self.api,
            model=asked.model,
            messages=messages,
            tools=check_tools(tools, limits),
            choosing=choosing,
            only=only,
            parallel=asked.parallel_tool_calls is not False,
            n=check_count(1 if asked.n is None else asked.n, limits.choices, field="n"),
            decoding=_decoding(asked, found, limits),
            form=_form(asked.response_format),
            logprobs=bool(asked.logprobs),
            top_logprobs=asked.top_logprobs or 0,
            token_ids=bool(asked.return_token_ids),
            stream=stream,
            usage_in_stream=stream and bool(asked.stream_options and asked.stream_options.include_usage),
            inert=(*found.inert, *(["tools.strict"] if strict else [])),
            unknown=(*found.unknown, *strange),
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": int(answer.created),
            "model": answer.asked.model,
            "choices": [_choice(answer, choice, at) for at, choice in enumerate(answer.choices)],
            "usage": usage(answer),
            **({"prompt_token_ids": list(answer.prompt_ids)} if answer.asked.token_ids else {}),
        }

    def opening(self, answer: Answer) -> Iterator[Event]:
        """A chunk with the role for each choice."""
        for at in range(answer.asked.n):
            yield _chunk(answer, at, {"role": "assistant", "content": ""})

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Texts, calls, reasons, usage, ``[DONE]``."""
        for at, choice in enumerate(answer.choices):
            for piece in text_pieces(choice.said.reasoning or ""):
                yield _chunk(answer, at, {"reasoning_content": piece})
            for piece in text_pieces(choice.said.content):
                yield _chunk(answer, at, {"content": piece})
            for number, call in enumerate(choice.said.calls):
                head = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
                yield _chunk(answer, at, {"tool_calls": [{"index": number, **head}]})
                for piece in text_pieces(call.arguments):
                    yield _chunk(answer, at, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
            yield _chunk(answer, at, {}, choice=choice)
        if answer.asked.usage_in_stream:
            yield Event(data={**_head(answer), "choices": [], "usage": usage(answer)})
        yield Event(data="[DONE]")

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error."""
        return openai_error(refusal)


def usage(answer: Answer) -> dict[str, int]:
    """Tokens of prompt and answer."""
    prompt = len(answer.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer.written,
        "total_tokens": prompt + answer.written,
    }


def choice_of(
    value: str | Mapping[str, Any] | None, tools: list[ToolView], *, key: str | None
) -> tuple[Choosing, str | None]:
    """What ``tool_choice`` asks for.

    Args:
        value: as sent.
        tools: that are offered.
        key: field of the object that holds the function; None when its name stands in the object itself.
    """
    if value is None or value in ("auto", "none", "required"):
        choosing = Choosing.AUTO if value is None else Choosing(str(value))
        if choosing is Choosing.REQUIRED and not tools:
            raise Refusal("tool_choice: `required` without tools", field="tool_choice", code="invalid_value")
        return choosing, None
    if isinstance(value, Mapping) and value.get("type") == "function":
        named = value.get(key) if key else value
        name = named.get("name") if isinstance(named, Mapping) else None
        if not isinstance(name, str) or name not in {tool.name for tool in tools}:
            raise Refusal(f"tool_choice: no tool {str(name)[:64]!r} among the tools", field="tool_choice")
        return Choosing.REQUIRED, name
    raise Refusal(
        f"tool_choice: found {str(value)[:80]!r}, expected auto, none, required or one function",
        field="tool_choice",
        code="unsupported_value",
    )


def top_k_of(value: int | None) -> int | None:
    """``top_k`` with the ways to say that there is none."""
    if value is not None and value < -1:
        raise Refusal(f"top_k: found {value}, expected at least 1", field="top_k", code="invalid_value")
    return None if value in (None, 0, -1) else value


def form_of(kind: str, schema: Mapping[str, Any] | None, name: str) -> Form | None:
    """What a response format asks for."""
    if kind == "text":
        return None
    if kind == "json_schema" and schema is None:
        raise Refusal("response_format.json_schema: missing", field="response_format.json_schema")
    return Form(schema=schema if kind == "json_schema" else None, name=name)


def _form(wanted: _ResponseFormat | None) -> Form | None:
    if wanted is None:
        return None
    schema = wanted.json_schema
    return form_of(wanted.type, None if schema is None else schema.schema_, "json" if schema is None else schema.name)


def _decoding(asked: ChatBody, found: Sorted, limits: Limits) -> Decoding:
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    return Decoding(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=top_k_of(asked.top_k),
        min_p=asked.min_p,
        max_tokens=limit,
        stop=check_stops(stops, limits, field="stop"),
        seed=asked.seed,
        biased=found.biased,
    )


def _said(value: Mapping[str, Any], at: int, strange: list[str]) -> Said:
    where = f"messages.{at}"
    message = validate(_Message, value, where=where)
    for name, item in value.items():
        if name not in _MESSAGE_FIELDS and item not in (None, [], ""):
            strange.append(f"{where}.{name}"[:160])
    calls = tuple(
        SaidCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in message.tool_calls or ()
    )
    if calls and message.role != "assistant":
        raise Refusal(f"{where}.tool_calls: only an assistant calls tools", field=f"{where}.tool_calls")
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    return Said(
        role="system" if message.role == "developer" else message.role,
        content=joined_text(message.content, where=f"{where}.content", kinds=("text",)),
        calls=calls,
        reasoning=reasoning if message.role == "assistant" else None,
        answers=message.tool_call_id or "",
    )


def _choice(answer: Answer, choice: Choice, at: int) -> dict[str, Any]:
    said = choice.said
    message: dict[str, Any] = {"role": "assistant", "content": said.content or (None if said.calls else "")}
    if said.reasoning is not None:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
    found = {
        "index": at,
        "message": message,
        "finish_reason": finish_reason(choice),
        "logprobs": _logprobs(answer, choice),
    }
    return {**found, "token_ids": told_ids(choice)} if answer.asked.token_ids else found


def _logprobs(answer: Answer, choice: Choice) -> dict[str, Any] | None:
    return {"content": told_logprobs(answer, choice), "refusal": None} if answer.asked.logprobs else None


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion.chunk",
        "created": int(answer.created),
        "model": answer.asked.model,
    }


def _chunk(answer: Answer, at: int, delta: dict[str, Any], *, choice: Choice | None = None) -> Event:
    found: dict[str, Any] = {"index": at, "delta": delta, "finish_reason": None, "logprobs": None}
    if choice is not None:
        found |= {"finish_reason": finish_reason(choice), "logprobs": _logprobs(answer, choice)}
        if answer.asked.token_ids:
            found["token_ids"] = told_ids(choice)
    ids = {"prompt_token_ids": list(answer.prompt_ids)} if answer.asked.token_ids and choice is not None else {}
    return Event(data={**_head(answer), "choices": [found], **ids})
