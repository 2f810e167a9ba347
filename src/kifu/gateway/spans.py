"""Spans of outside agents in OpenTelemetry's form, and the turns they belong to.

A span says what an agent claims about itself: it is attached to a turn as an event and decides nothing.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from kifu.gateway.refusal import Refusal
from kifu.records import Durable, Event, Json, Turn

SPAN = "capture.span"
RESPONSE_ID, CALL_ID, OPERATION = "gen_ai.response.id", "gen_ai.tool.call.id", "gen_ai.operation.name"
MAX_NAME, MAX_TEXT, MAX_ATTRIBUTES, MAX_ITEMS = 256, 512, 64, 16
_FAILED = 2
"""Code of a status that is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpan:
    """One span, cut to what a record keeps."""

    trace: str
    """Hexadecimal, as the other ids."""
    id: str
    parent: str = ""
    """Empty for the root of a trace."""
    name: str
    start_s: float
    """Unix seconds."""
    seconds: float
    failed: bool = False
    attributes: Mapping[str, Json] = field(default_factory=dict)
    """Short values. Texts of messages, arguments and results stand in the turn itself."""
    omitted: tuple[str, ...] = ()
    """Names of attributes that are not kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def to_json(self) -> dict[str, Json]:
        """As it is logged."""
        found = {
            name: getattr(self, name) for name in ("trace", "id", "parent", "name", "start_s", "seconds", "failed")
        }
        return {**found, "attributes": dict(self.attributes), "omitted": list(self.omitted)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "AgentSpan":
        """Read what `to_json` wrote."""
        return cls(**{**value, "omitted": tuple(value["omitted"])})


def span_of(
    *,
    ids: Sequence[str],
    name: str,
    times_ns: tuple[int, int],
    status: int,
    attributes: Sequence[tuple[str, Json]],
) -> AgentSpan:
    """A span from its parts.

    Args:
        ids: hexadecimal ids of the trace, the span and its parent; the last may be empty.
        name: of the span.
        times_ns: start and end, Unix nanoseconds.
        status: 2 is an error.
        attributes: as sent; texts that are long and values of other kinds are named and left out.

    Raises:
        Refusal: ids or times are not those of a span.
    """
    trace, own, parent = (text.lower() for text in ids)
    if len(trace) != 32 or len(own) != 16 or len(parent) not in (0, 16) or set(trace + own + parent) - _HEX:
        raise Refusal("resourceSpans: a span needs a trace id of 16 bytes and a span id of 8", field="resourceSpans")
    start, stop = times_ns
    if not 0 <= start < 2**63 or not 0 <= stop < 2**63:
        raise Refusal("resourceSpans: times of a span are nanoseconds since 1970", field="resourceSpans")
    kept = {key: value for key, value in attributes if len(key) <= MAX_NAME and _is_short(value)}
    kept = dict(list(kept.items())[:MAX_ATTRIBUTES])
    return AgentSpan(
        trace=trace,
        id=own,
        parent=parent,
        name=name[:MAX_NAME],
        start_s=start / 1e9,
        seconds=max(stop - start, 0) / 1e9,
        failed=status == _FAILED,
        attributes=kept,
        omitted=tuple(dict.fromkeys(key[:MAX_NAME] for key, _ in attributes if key not in kept))[:MAX_ATTRIBUTES],
    )


def spans_of_json(body: Mapping[str, Any]) -> list[AgentSpan]:
    """Spans of an OTLP request in JSON: ids are hexadecimal, 64-bit integers may be strings.

    Raises:
        Refusal: it is no such request.
    """
    try:
        return [_json_span(item) for item in _json_spans(body)]
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise Refusal(f"resourceSpans: not spans in OTLP's JSON: {cause!r}"[:300], field="resourceSpans") from cause


def with_spans(
    turns: Sequence[Turn], spans: Sequence[AgentSpan], turn_of: Callable[[str], int | None]
) -> tuple[tuple[Turn, ...], int]:
    """Turns with their spans as events, and the number of spans that belong to none.

    A span belongs to the turn that its response or its tool call names; else to the turn of the nearest span above it
    that names one; else to the first turn below it; else to the first turn of its trace.
    """
    by_id = {(span.trace, span.id): span for span in spans}
    named = {key: turn for key, span in by_id.items() if (turn := _named(span, turn_of)) is not None}
    below: dict[tuple[str, str], int] = {}
    traces: dict[str, int] = {}
    for key, turn in named.items():
        traces[key[0]] = min(turn, traces.get(key[0], turn))
        for above in _above(by_id, key):
            below[above] = min(turn, below.get(above, turn))
    events: dict[int, list[Event]] = {}
    lost = 0
    for key, span in sorted(by_id.items(), key=lambda item: (item[1].start_s, item[0])):
        ancestors = (named[above] for above in _above(by_id, key) if above in named)
        places = (named.get(key), next(ancestors, None), below.get(key), traces.get(key[0]))
        turn = next((place for place in places if place is not None), None)
        if turn is None:
            lost += 1
        else:
            by = ("name", "above", "below", "trace")[[place is not None for place in places].index(True)]
            events.setdefault(turn, []).append(Event(kind=SPAN, detail={**span.to_json(), "by": by}))
    return tuple(replace(turn, events=(*turn.events, *events.get(turn.index, ()))) for turn in turns), lost


class Traces:
    """The spans of one rollout, durable as they come.

    Args:
        log: of the rollout.
        limit: spans kept at most.
    """

    def __init__(self, log: Callable[[Mapping[str, Any]], Durable], *, limit: int) -> None:
        self._log = log
        self._limit = limit
        self.spans: list[AgentSpan] = []

    async def take(self, spans: Sequence[AgentSpan]) -> int:
        """Keep spans as far as there is room; gives how many."""
        kept = list(spans[: self._limit - len(self.spans)])
        if kept:
            self.spans += kept
            entry = {"kind": "spans", "spans": [span.to_json() for span in kept]}
            await asyncio.wrap_future(self._log(entry))
        return len(kept)

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Take spans back from the log."""
        self.spans += [AgentSpan.from_json(item) for item in entry["spans"]]


_HEX = frozenset("0123456789abcdef")


def _is_short(value: Json) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, list):
        return len(value) <= MAX_ITEMS and all(not isinstance(item, list | dict) and _is_short(item) for item in value)
    return not isinstance(value, str) or len(value) <= MAX_TEXT if not isinstance(value, dict) else False


def _named(span: AgentSpan, turn_of: Callable[[str], int | None]) -> int | None:
    for name in (RESPONSE_ID, CALL_ID):
        value = span.attributes.get(name)
        turn = turn_of(value) if isinstance(value, str) else None
        if turn is not None:
            return turn
    return None


def _above(by_id: Mapping[tuple[str, str], AgentSpan], key: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Keys of the spans around one, the nearest first; a cycle ends where it closes."""
    seen = {key}
    while key in by_id and by_id[key].parent:
        key = (key[0], by_id[key].parent)
        if key in seen:
            return
        seen.add(key)
        yield key


def _json_spans(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in _listed(body, "resourceSpans"):
        for scope in _listed(resource, "scopeSpans"):
            yield from _listed(scope, "spans")


def _listed(value: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = value.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise TypeError(f"{name} is no list of objects")
    return found


def _json_span(value: Mapping[str, Any]) -> AgentSpan:
    attributes = [(str(item["key"]), _json_value(item.get("value") or {})) for item in _listed(value, "attributes")]
    status = value.get("status") or {}
    return span_of(
        ids=[str(value[name]) for name in ("traceId", "spanId")] + [str(value.get("parentSpanId") or "")],
        name=str(value.get("name", "")),
        times_ns=(int(value.get("startTimeUnixNano", 0)), int(value.get("endTimeUnixNano", 0))),
        status=_FAILED if status.get("code") in (_FAILED, "STATUS_CODE_ERROR") else 0,
        attributes=attributes,
    )


def _json_value(value: Mapping[str, Any]) -> Json:
    """One of OTLP's typed values; bytes, maps and what nobody knows become an object, which is not kept."""
    for name, read in (("stringValue", str), ("boolValue", bool), ("intValue", int), ("doubleValue", float)):
        if name in value:
            found: Json = read(value[name])
            return found
    if "arrayValue" in value:
        return [_json_value(item) for item in _listed(value["arrayValue"], "values")]
    return {}
