"""``/v1/messages``: Anthropic's dialect."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from kifu.gateway.asked import Api, Asked, Choosing, Decoding, Form
from kifu.gateway.captured import Choice
from kifu.gateway.refusal import Refusal
from kifu.gateway.said import Said, SaidCall
from kifu.gateway.settings import Limits
from kifu.gateway.wire.chat import Probability, top_k_of
from kifu.gateway.wire.contract import (
    Answer,
    Event,
    Fields,
    Strict,
    check_messages,
    check_stops,
    check_tools,
    sort_fields,
    text_pieces,
    tool_view,
    validate,
)
from kifu.gateway.wire.parts import joined_text
from kifu.records import Finish
from kifu.render import ToolView

FIELDS = Fields(
    inert=frozenset({"metadata", "service_tier", "betas", "inference_geo", "cache_control", "user_profile_id"}),
    refused={
        "container": (),
        "context_management": ({},),
        "mcp_servers": ([],),
        "fallback_model": (),
    },
)
_READ = {"user": ("text", "tool_result"), "assistant": ("text", "tool_use", "thinking"), "system": ("text",)}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class _Tool(Strict):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None


class _ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Message(Strict):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class _Thinking(Strict):
    type: Literal["enabled", "disabled", "adaptive"]


class _Format(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class _OutputConfig(Strict):
    format: _Format | None = None


class MessagesBody(Strict):
    """What is honoured."""

    model: str
    messages: list[_Message]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    stream: bool | None = None


class Messages:
    """Implements `Dialect`."""

    api: Api = "messages"

    def read(self, body: Mapping[str, Any], limits: Limits) -> Asked:
        """Understand a body."""
        asked = validate(MessagesBody, body)
        found = sort_fields(body, honoured=MessagesBody, fields=FIELDS)
        check_messages(len(asked.messages), limits, field="messages")
        if asked.messages[-1].role == "assistant":
            raise Refusal(
                "messages: the last one is the assistant's; prefilled answers are not served", field="messages"
            )
        inert: list[str] = list(found.inert)
        system = joined_text(asked.system, where="system", kinds=("text",))
        messages = [Said(role="system", content=system)] if system else []
        for at, message in enumerate(asked.messages):
            messages += _said(message, f"messages.{at}", inert)
        tools = check_tools([_tool(item, at) for at, item in enumerate(asked.tools or ())], limits)
        if any(item.strict for item in asked.tools or ()):
            inert.append("tools.strict")
        choosing, only = _choosing(asked.tool_choice, tools)
        wanted = None if asked.output_config is None else asked.output_config.format
        return Asked(
            api=self.api,
            model=asked.model,
            messages=tuple(messages),
            tools=tools,
            choosing=choosing,
            only=only,
            parallel=not (asked.tool_choice is not None and asked.tool_choice.disable_parallel_tool_use),
            decoding=Decoding(
                temperature=asked.temperature,
                top_p=asked.top_p,
                top_k=top_k_of(asked.top_k),
                max_tokens=asked.max_tokens,
                stop=check_stops(asked.stop_sequences or (), limits, field="stop_sequences"),
            ),
            form=None if wanted is None else Form(schema=wanted.schema_),
            thinking=asked.thinking is not None and asked.thinking.type != "disabled",
            stream=bool(asked.stream),
            inert=tuple(dict.fromkeys(inert)),
            unknown=found.unknown,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The body of the answer."""
        choice = answer.choices[0]
        return {
            **_head(answer),
            "content": [_filled(block) for block in _blocks(answer, choice)],
            **_stop(answer, choice),
            "usage": {"input_tokens": len(answer.prompt_ids), "output_tokens": answer.written},
        }

    def opening(self, answer: Answer) -> Iterator[Event]:
        """``message_start`` and a ping."""
        usage = {"input_tokens": len(answer.prompt_ids), "output_tokens": 0}
        message = {**_head(answer), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event({"type": "message_start", "message": message})
        yield _event({"type": "ping"})

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Blocks one after the other, the reason, ``message_stop``."""
        choice = answer.choices[0]
        for at, (empty, deltas) in enumerate(_blocks(answer, choice)):
            yield _event({"type": "content_block_start", "index": at, "content_block": empty})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": at, "delta": delta})
            yield _event({"type": "content_block_stop", "index": at})
        usage = {"input_tokens": len(answer.prompt_ids), "output_tokens": answer.written}
        yield _event({"type": "message_delta", "delta": _stop(answer, choice), "usage": usage})
        yield _event({"type": "message_stop"})

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error."""
        kind = _KINDS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(refusal)}}


def require_limit(asked: Asked) -> Asked:
    """A message needs a limit on tokens; counting tokens does not."""
    if asked.decoding.max_tokens is None:
        raise Refusal("max_tokens: Field required", field="max_tokens", code="invalid_value")
    return asked


def _event(data: dict[str, Any]) -> Event:
    return Event(name=data["type"], data=data)


def _head(answer: Answer) -> dict[str, Any]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": answer.asked.model}


_Block = tuple[dict[str, Any], list[dict[str, Any]]]


def _blocks(answer: Answer, choice: Choice) -> list[_Block]:
    """Every block empty, with the deltas that fill it."""
    said = choice.said
    found: list[_Block] = []
    if said.reasoning is not None and answer.asked.thinking:
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in text_pieces(said.reasoning)]
        signed = {"type": "signature_delta", "signature": answer.id}
        found.append(({"type": "thinking", "thinking": "", "signature": ""}, [*pieces, signed]))
    if said.content or not said.calls:
        deltas = [{"type": "text_delta", "text": piece} for piece in text_pieces(said.content)]
        found.append(({"type": "text", "text": ""}, deltas))
    for call in said.calls:
        parts = [{"type": "input_json_delta", "partial_json": piece} for piece in text_pieces(call.arguments)]
        found.append(({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, parts))
    return found


def _filled(block: _Block) -> dict[str, Any]:
    found = dict(block[0])
    for delta in block[1]:
        for name in ("text", "thinking", "signature"):
            if name in delta:
                found[name] += delta[name]
    if found["type"] == "tool_use":
        found["input"] = json.loads("".join(delta["partial_json"] for delta in block[1]))
    return found


def _stop(answer: Answer, choice: Choice) -> dict[str, Any]:
    if choice.said.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if choice.cut:
        text = choice.parsed.text
        stops = [stop for stop in answer.asked.decoding.stop if stop in text]
        return {"stop_reason": "stop_sequence", "stop_sequence": min(stops, key=text.find)}
    reason = "end_turn" if choice.generation.finish is Finish.STOP else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": None}


def _tool(item: _Tool, at: int) -> ToolView:
    if item.type not in (None, "custom"):
        raise Refusal(
            f"tools.{at}.type: {item.type[:40]!r} is run by the vendor's servers, which are not here",
            field=f"tools.{at}.type",
            code="unsupported_value",
        )
    return tool_view(item.name, item.description, item.input_schema, where=f"tools.{at}")


def _choosing(wanted: _ToolChoice | None, tools: tuple[ToolView, ...]) -> tuple[Choosing, str | None]:
    if wanted is None or wanted.type == "auto":
        return Choosing.AUTO, None
    if wanted.type == "none":
        return Choosing.NONE, None
    if wanted.type == "tool":
        if wanted.name not in {tool.name for tool in tools}:
            raise Refusal(f"tool_choice.name: no tool {str(wanted.name)[:64]!r}", field="tool_choice.name")
        return Choosing.REQUIRED, wanted.name
    if not tools:
        raise Refusal("tool_choice: `any` without tools", field="tool_choice")
    return Choosing.REQUIRED, None


def _said(message: _Message, where: str, inert: list[str]) -> list[Said]:
    """One message of this dialect as several: results of tools stand alone."""
    if isinstance(message.content, str):
        return [Said(role=message.role, content=message.content)]
    found: list[Said] = []
    texts: list[str] = []
    calls: list[SaidCall] = []
    reasoning: str | None = None
    for at, block in enumerate(message.content):
        path, kind = f"{where}.content.{at}", _kind(block, message.role, f"{where}.content.{at}.type")
        inert += [f"{kind}.{name}" for name in ("cache_control", "is_error") if block.get(name)]
        if kind == "text":
            texts.append(joined_text([block], where=path, kinds=("text",)))
        elif kind == "tool_use":
            calls.append(_call(block, path))
        elif kind == "thinking":
            reasoning = (reasoning or "") + str(block.get("thinking", ""))
        else:
            if texts:
                found.append(Said(role="user", content="".join(texts)))
                texts = []
            found.append(_result(block, path))
    if message.role == "assistant":
        return [Said(role="assistant", content="".join(texts), calls=tuple(calls), reasoning=reasoning)]
    return [*found, Said(role=message.role, content="".join(texts))] if texts or not found else found


def _kind(block: Mapping[str, Any], role: str, where: str) -> str:
    """Type of a block that a message of this role may hold."""
    kind = block.get("type")
    if kind not in _READ[role]:
        raise Refusal(
            f"{where}: found {str(kind)[:40]!r} in a message of the {role}, expected {' or '.join(_READ[role])}",
            field=where,
            code="unsupported_content",
        )
    return str(kind)


def _call(block: Mapping[str, Any], path: str) -> SaidCall:
    name, arguments, ident = block.get("name"), block.get("input"), block.get("id")
    if not isinstance(name, str) or not isinstance(arguments, dict) or not isinstance(ident, str):
        raise Refusal(f"{path}: a tool_use needs id, name and an object as input", field=path, code="invalid_value")
    return SaidCall(id=ident, name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _result(block: Mapping[str, Any], path: str) -> Said:
    content, answers = block.get("content"), block.get("tool_use_id")
    if not isinstance(answers, str) or not (content is None or isinstance(content, str | list)):
        raise Refusal(f"{path}: a tool_result needs tool_use_id and text", field=path, code="invalid_value")
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        raise Refusal(f"{path}.content: expected blocks", field=f"{path}.content", code="invalid_value")
    return Said(role="tool", content=joined_text(content, where=f"{path}.content", kinds=("text",)), answers=answers)
