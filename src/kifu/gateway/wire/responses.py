"""``/v1/responses``: OpenAI's dialect of typed items, without state on the server."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from kifu.gateway.asked import Api, Asked, Decoding
from kifu.gateway.captured import Choice
from kifu.gateway.refusal import Refusal
from kifu.gateway.said import Said, SaidCall
from kifu.gateway.settings import Limits
from kifu.gateway.wire.chat import Probability, choice_of, form_of
from kifu.gateway.wire.contract import (
    Answer,
    Event,
    Fields,
    Strict,
    check_messages,
    check_tools,
    finish_reason,
    openai_error,
    sort_fields,
    text_pieces,
    told_logprobs,
    tool_view,
    validate,
)
from kifu.gateway.wire.parts import joined_text
from kifu.render import ToolView

FIELDS = Fields(
    inert=frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "reasoning"}
        | {"prompt_cache_retention", "stream_options"}
    ),
    refused={
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "truncation": ("disabled",),
        "max_tool_calls": (),
        "context_management": ([],),
    },
)


LOGPROBS = "message.output_text.logprobs"
"""What ``include`` names to be told logprobs; its other names change nothing here."""


class _Tool(Strict):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str = "json"
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class _Text(Strict):
    format: _Format | None = None


class ResponsesBody(Strict):
    """What is honoured."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: _Text | None = None
    include: list[str] | None = None
    stream: bool | None = None


class Responses:
    """Implements `Dialect`."""

    api: Api = "responses"

    def read(self, body: Mapping[str, Any], limits: Limits) -> Asked:
        """Understand a body."""
        asked = validate(ResponsesBody, body)
        found = sort_fields(body, honoured=ResponsesBody, fields=FIELDS)
        messages = [Said(role="system", content=asked.instructions)] if asked.instructions else []
        if isinstance(asked.input, str):
            messages.append(Said(role="user", content=asked.input))
        else:
            check_messages(len(asked.input), limits, field="input")
            messages += _conversation(asked.input)
        tools = [
            tool_view(item.name, item.description, item.parameters, where=f"tools.{at}")
            for at, item in enumerate(asked.tools or ())
        ]
        inert = list(found.inert)
        included = asked.include or []
        if asked.include is not None and set(included) != {LOGPROBS}:
            inert.insert(0, "include")
        if any(item.strict for item in asked.tools or ()):
            inert.append("tools.strict")
        choosing, only = choice_of(asked.tool_choice, tools, key=None)
        wanted = None if asked.text is None else asked.text.format
        return Asked(
            api=self.api,
            model=asked.model,
            messages=tuple(messages),
            tools=check_tools(tools, limits),
            choosing=choosing,
            only=only,
            parallel=asked.parallel_tool_calls is not False,
            decoding=Decoding(temperature=asked.temperature, top_p=asked.top_p, max_tokens=asked.max_output_tokens),
            form=None if wanted is None else form_of(wanted.type, wanted.schema_, wanted.name),
            logprobs=bool(asked.top_logprobs) or LOGPROBS in included,
            top_logprobs=asked.top_logprobs or 0,
            stream=bool(asked.stream),
            inert=tuple(inert),
            unknown=found.unknown,
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The body of the answer."""
        choice = answer.choices[0]
        cut = finish_reason(choice) == "length"
        return {
            **_head(answer),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(answer, choice),
            "usage": _usage(answer),
        }

    def opening(self, answer: Answer) -> Iterator[Event]:
        """``response.created`` and ``response.in_progress``."""
        response = {**_head(answer), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield _event(0, "response.created", response=response)
        yield _event(1, "response.in_progress", response=response)

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Items one after the other, then ``response.completed`` or ``response.incomplete``."""
        number = 2
        for at, item in enumerate(_items(answer, answer.choices[0])):
            for name, fields in _item_events(item):
                yield _event(number, name, output_index=at, **fields)
                number += 1
        response = self.answer(answer)
        yield _event(number, f"response.{response['status']}", response=response)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error."""
        return openai_error(refusal)


def _event(number: int, name: str, /, **fields: Any) -> Event:  # noqa: ANN401 - JSON
    return Event(name=name, data={"type": name, "sequence_number": number, **fields})


def _head(answer: Answer) -> dict[str, Any]:
    asked = answer.asked
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": int(answer.created),
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "parallel_tool_calls": asked.parallel,
        "temperature": asked.decoding.temperature,
        "top_p": asked.decoding.top_p,
        "max_output_tokens": asked.decoding.max_tokens,
        "tool_choice": {"type": "function", "name": asked.only} if asked.only else asked.choosing.value,
        "tools": [_told(tool) for tool in asked.tools],
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
    }


def _told(tool: ToolView) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", **described, "strict": False}


def _usage(answer: Answer) -> dict[str, Any]:
    prompt = len(answer.prompt_ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + answer.written,
    }


def _items(answer: Answer, choice: Choice) -> list[dict[str, Any]]:
    said = choice.said
    found: list[dict[str, Any]] = []
    if said.reasoning is not None:
        text = [{"type": "reasoning_text", "text": said.reasoning}]
        found.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": text})
    if said.content or not said.calls:
        told = told_logprobs(answer, choice) if answer.asked.logprobs else []
        part = {"type": "output_text", "text": said.content, "annotations": [], "logprobs": told}
        message = {"id": said.id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}
        found.append(message)
    for call in said.calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        found.append({"id": f"fc_{call.id}", "type": "function_call", "status": "completed", **named})
    return found


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events of one item, without its place."""
    name = {"item_id": item["id"]}
    if item["type"] == "reasoning":
        yield "response.output_item.added", {"item": {**item, "content": []}}
    elif item["type"] == "function_call":
        yield "response.output_item.added", {"item": {**item, "status": "in_progress", "arguments": ""}}
        for piece in text_pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**name, "delta": piece}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield "response.function_call_arguments.done", {**name, **done}
    else:
        part = item["content"][0]
        place = {**name, "content_index": 0}
        yield "response.output_item.added", {"item": {**item, "status": "in_progress", "content": []}}
        yield "response.content_part.added", {**place, "part": {**part, "text": "", "logprobs": []}}
        for piece in text_pieces(part["text"]):
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**place, "text": part["text"], "logprobs": part["logprobs"]}
        yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"item": item}


def _conversation(items: list[dict[str, Any]]) -> list[Said]:
    """Items as messages: thinking, text and calls that follow each other are one message of the assistant."""
    found: list[Said] = []
    is_open = False
    for at, item in enumerate(items):
        kind, where = item.get("type", "message"), f"input.{at}"
        if kind == "message":
            said = _message(item, where)
            before = found[-1] if is_open else None
            if said.role == "assistant" and before is not None and not before.content and not before.calls:
                said = Said(role="assistant", content=said.content, reasoning=before.reasoning, id=said.id)
                found.pop()
            found.append(said)
            is_open = said.role == "assistant"
        elif kind == "reasoning":
            found.append(Said(role="assistant", reasoning=_reasoning(item)))
            is_open = True
        elif kind == "function_call":
            before = found.pop() if is_open else Said(role="assistant")
            calls = (*before.calls, _call(item, where))
            found.append(
                Said(role="assistant", content=before.content, calls=calls, reasoning=before.reasoning, id=before.id)
            )
            is_open = True
        elif kind == "function_call_output":
            found.append(_output(item, where))
            is_open = False
        else:
            raise Refusal(
                f"{where}.type: found {str(kind)[:40]!r}; the policy reads messages and calls of functions only",
                field=f"{where}.type",
                code="unsupported_content",
            )
    return found


def _message(item: Mapping[str, Any], where: str) -> Said:
    role, content = item.get("role"), item.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refusal(f"{where}.role: found {str(role)[:40]!r}", field=f"{where}.role", code="invalid_value")
    if not isinstance(content, str | list) or (
        isinstance(content, list) and not all(isinstance(part, dict) for part in content)
    ):
        raise Refusal(f"{where}.content: expected text or parts", field=f"{where}.content", code="invalid_value")
    text = joined_text(content, where=f"{where}.content", kinds=("input_text", "output_text", "text"))
    ident = item.get("id")
    name = ident if role == "assistant" and isinstance(ident, str) else ""
    return Said(role="system" if role == "developer" else role, content=text, id=name)


def _reasoning(item: Mapping[str, Any]) -> str | None:
    parts = item.get("content") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if found else None


def _call(item: Mapping[str, Any], where: str) -> SaidCall:
    values = [item.get(name) for name in ("call_id", "name", "arguments")]
    if not all(isinstance(value, str) for value in values):
        raise Refusal(f"{where}: a function_call needs call_id, name and arguments", field=where, code="invalid_value")
    return SaidCall(id=str(values[0]), name=str(values[1]), arguments=str(values[2]))


def _output(item: Mapping[str, Any], where: str) -> Said:
    output, answers = item.get("output"), item.get("call_id")
    if not isinstance(answers, str) or not isinstance(output, str | list):
        raise Refusal(f"{where}: a function_call_output needs call_id and output", field=where, code="invalid_value")
    if isinstance(output, list) and not all(isinstance(part, dict) for part in output):
        raise Refusal(f"{where}.output: expected text or parts", field=f"{where}.output", code="invalid_value")
    text = joined_text(output, where=f"{where}.output", kinds=("input_text", "output_text", "text"))
    return Said(role="tool", content=text, answers=answers)
