"""What a dialect of HTTP is, and what all of them share."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError

from kifu.gateway.asked import Api, Asked
from kifu.gateway.captured import Captured, Choice
from kifu.gateway.refusal import Refusal
from kifu.gateway.settings import Limits
from kifu.records import Finish
from kifu.render import ChatRenderer, ToolView

PIECE = 48
"""Characters of text in one event of a stream."""
MAX_NAME = 128
_SHOWN = 32

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    data: Mapping[str, Any] | str
    name: str | None = None

    @property
    def text(self) -> str:
        """Its data on one line."""
        return self.data if isinstance(self.data, str) else json.dumps(self.data, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What an answer is written from."""

    asked: Asked
    id: str
    """Unique in the run; each dialect adds its prefix."""
    created: float
    """Unix seconds."""
    prompt_ids: Sequence[int]
    renderer: ChatRenderer
    call: Captured | None = None
    """None while the call is under way."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The turns."""
        assert self.call is not None
        return self.call.choices

    @property
    def written(self) -> int:
        """Tokens of all choices."""
        return sum(int(choice.generation.token_ids.size) for choice in self.choices)


class Dialect(Protocol):
    """One way to ask and to be answered."""

    @property
    def api(self) -> Api:
        """Its name."""
        ...

    def read(self, body: Mapping[str, Any], limits: Limits) -> Asked:
        """Understand a body.

        Raises:
            Refusal: naming the field at fault.
        """
        ...

    def answer(self, answer: Answer) -> dict[str, Any]:
        """The body of the answer."""
        ...

    def opening(self, answer: Answer) -> Iterator[Event]:
        """Events that need no turn yet."""
        ...

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Events of the finished turns; the last one ends the stream."""
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The body of an error, which is also the event of an error inside a stream."""
        ...


class Strict(BaseModel):
    """Fields a dialect honours. Types are not converted; other fields are sorted by `sort_fields`."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class ItemsLike:
    """Describes the items of a list as a model; they are checked one by one, so that an error names its item."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:  # noqa: ANN401
        """The schema of the list with that of its items."""
        return {**handler(schema), "items": handler(self.model.__pydantic_core_schema__)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What becomes of fields that are not honoured."""

    inert: frozenset[str]
    """Change nothing here; recorded."""
    refused: Mapping[str, tuple[object, ...]]
    """Cannot be honoured; the values that ask for nothing are let through."""
    biased: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Transforms of logits that are no support; likewise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "refused", MappingProxyType(dict(self.refused)))
        object.__setattr__(self, "biased", MappingProxyType(dict(self.biased)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The fields of a body that the dialect's model does not have."""

    inert: tuple[str, ...]
    unknown: tuple[str, ...]
    biased: Mapping[str, Any]


def validate(model: type[Model], value: object, *, where: str = "") -> Model:
    """Check a value against a model.

    Raises:
        Refusal: naming the first field at fault.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join([*([where] if where else []), *(str(part) for part in first["loc"])])
        raise Refusal(f"{path}: {first['msg']}", field=path, code="invalid_value") from error


def sort_fields(body: Mapping[str, Any], *, honoured: type[BaseModel], fields: Fields) -> Sorted:
    """Tell inert, biased and unknown fields apart.

    Raises:
        Refusal: a field that cannot be honoured.
    """
    known = {item.alias or name for name, item in honoured.model_fields.items()}
    inert, unknown, biased = [], [], {}
    for name, value in body.items():
        if name in known or value is None:
            continue
        if name in fields.refused:
            if not _is_neutral(value, fields.refused[name]):
                raise Refusal(
                    f"{name}: cannot be honoured here, so the call is not answered; leave it out",
                    field=name,
                    code="unsupported_parameter",
                )
        elif name in fields.biased:
            if not _is_neutral(value, fields.biased[name]):
                biased[name] = value
        elif name in fields.inert:
            inert.append(name)
        else:
            unknown.append(name[:MAX_NAME])
    return Sorted(inert=tuple(inert), unknown=tuple(unknown[:_SHOWN]), biased=biased)


def _is_neutral(value: object, neutral: Sequence[object]) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)


def tool_view(name: str, description: str | None, parameters: Mapping[str, Any] | None, *, where: str) -> ToolView:
    """A tool, with what the rest relies on checked.

    Raises:
        Refusal: the name or the schema cannot be shown to the policy.
    """
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise Refusal(
            f"{where}.name: found {name[:40]!r}, expected 1 to {MAX_NAME} printable characters", field=f"{where}.name"
        )
    schema = dict(parameters or {"type": "object", "properties": {}})
    properties = schema.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(item, dict) for item in properties.values()):
        raise Refusal(
            f"{where}.parameters.properties: expected an object of schemas", field=f"{where}.parameters.properties"
        )
    needed = schema.get("required") or []
    if not isinstance(needed, list) or not all(isinstance(item, str) for item in needed):
        raise Refusal(f"{where}.parameters.required: expected a list of names", field=f"{where}.parameters.required")
    return ToolView(name=name, description=description or "", parameters=schema)


def check_tools(tools: Sequence[ToolView], limits: Limits) -> tuple[ToolView, ...]:
    """Refuse too many tools, and two of one name."""
    names = [tool.name for tool in tools]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise Refusal(f"tools: `{twice}` is there twice", field="tools", code="invalid_value")
    if len(tools) > limits.tools:
        raise Refusal(f"tools: found {len(tools)}, at most {limits.tools}", field="tools", code="invalid_value")
    return tuple(tools)


def check_stops(stops: Sequence[str], limits: Limits, *, field: str) -> tuple[str, ...]:
    """Refuse too many or too long stop strings; empty ones stop nothing."""
    found = tuple(text for text in stops if text)
    if len(found) > limits.stop_strings or any(len(text) > limits.stop_chars for text in found):
        raise Refusal(f"{field}: at most {limits.stop_strings} strings of {limits.stop_chars} characters", field=field)
    return found


def check_count(value: int, most: int, *, field: str) -> int:
    """Refuse a number of choices outside 1 to ``most``."""
    if not 1 <= value <= most:
        raise Refusal(f"{field}: found {value}, expected 1 to {most}", field=field, code="invalid_value")
    return value


def check_messages(count: int, limits: Limits, *, field: str) -> None:
    """Refuse no messages, or too many."""
    if not 1 <= count <= limits.messages:
        raise Refusal(f"{field}: found {count} messages, expected 1 to {limits.messages}", field=field)


def text_pieces(text: str) -> Iterator[str]:
    """A text in pieces for a stream."""
    for at in range(0, len(text), PIECE):
        yield text[at : at + PIECE]


def finish_reason(choice: Choice) -> str:
    """As OpenAI's chat dialect names it."""
    if choice.said.calls:
        return "tool_calls"
    return "stop" if choice.generation.finish is Finish.STOP else "length"


def told_logprobs(answer: "Answer", choice: Choice) -> list[dict[str, Any]]:
    """Every token of a turn with its logprob and the likeliest alternatives, as OpenAI's dialects write them.

    A token that nobody chose has probability 1, and no alternatives.
    """
    made, decode = choice.generation, answer.renderer.tokenizer.decode
    found = []
    for at, (token, sampled) in enumerate(zip(made.token_ids.tolist(), made.sampled.tolist(), strict=True)):
        others = made.alternatives[at] if made.alternatives is not None else ()
        told = [_told_token(decode([other]), nats) for other, nats in others]
        value = float(made.logprobs[at]) if sampled else 0.0
        found.append({**_told_token(decode([token]), value), "top_logprobs": told})
    return found


def _told_token(text: str, nats: float) -> dict[str, Any]:
    return {"token": text, "logprob": nats, "bytes": list(text.encode())}


def told_ids(choice: Choice) -> list[int]:
    """Ids of the turn, its stop token included."""
    return [int(token) for token in choice.generation.token_ids]


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """An error as OpenAI's dialects write it."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.field, "code": refusal.code}}
