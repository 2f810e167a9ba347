"""``/v1/traces``: spans over OTLP's HTTP, in JSON or in protocol buffers."""

import zlib
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kifu.gateway.body import parse_body, read_body
from kifu.gateway.gateway import Gateway
from kifu.gateway.http import Endpoint, rollout_of
from kifu.gateway.refusal import Refusal
from kifu.gateway.settings import Limits
from kifu.gateway.spans import AgentSpan, span_of, spans_of_json
from kifu.records import Json

JSON, PROTOBUF = "application/json", "application/x-protobuf"
_GZIP = 31
"""Window bits by which zlib reads gzip."""
_INVALID_ARGUMENT = 3
"""Code of a status of gRPC, which OTLP answers errors with."""


def tracing(gateway: Gateway) -> Endpoint:
    """The endpoint; spans belong to the rollout of the key."""

    async def endpoint(request: Request) -> Response:
        try:
            return await _take(request, gateway)
        except Refusal as refusal:
            told = {"code": _INVALID_ARGUMENT, "message": str(refusal)}
            return JSONResponse(told, status_code=refusal.status)

    return endpoint


def spans_of_protobuf(data: bytes) -> list[AgentSpan]:
    """Spans of an OTLP request in protocol buffers.

    Raises:
        Refusal: it is no such request.
    """
    try:
        request = ExportTraceServiceRequest.FromString(data)
    except DecodeError as cause:
        raise Refusal(f"the body is no ExportTraceServiceRequest: {cause}"[:300]) from cause
    return [
        span_of(
            ids=[span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()],
            name=span.name,
            times_ns=(span.start_time_unix_nano, span.end_time_unix_nano),
            status=int(span.status.code),
            attributes=[(item.key, _value(item.value)) for item in span.attributes],
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


async def _take(request: Request, gateway: Gateway) -> Response:
    rollout = rollout_of(request, gateway)
    limits = gateway.desk.serving.limits
    data = await read_body(request.stream(), declared=request.headers.get("content-length"), limits=limits)
    data = _unpacked(data, request.headers.get("content-encoding", "identity"), limits)
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind not in (JSON, PROTOBUF):
        raise Refusal(f"content-type: found {kind[:60]!r}, expected {JSON} or {PROTOBUF}", status=415)
    spans = spans_of_protobuf(data) if kind == PROTOBUF else spans_of_json(await parse_body(data, limits))
    kept = await rollout.traces.take(spans)
    return _answer(kind, len(spans) - kept, limits)


def _answer(kind: str, rejected: int, limits: Limits) -> Response:
    why = f"a rollout keeps at most {limits.spans} spans" if rejected else ""
    if kind == PROTOBUF:
        found = ExportTraceServiceResponse()
        if rejected:
            found.partial_success.rejected_spans, found.partial_success.error_message = rejected, why
        return Response(found.SerializeToString(), media_type=PROTOBUF)
    told = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": why}} if rejected else {}
    return JSONResponse(told)


def _unpacked(data: bytes, encoding: str, limits: Limits) -> bytes:
    if encoding == "identity":
        return data
    if encoding != "gzip":
        raise Refusal(f"content-encoding: found {encoding[:40]!r}, expected gzip or none", status=415)
    reader = zlib.decompressobj(_GZIP)
    try:
        found = reader.decompress(data, limits.body_bytes + 1)
    except zlib.error as cause:
        raise Refusal(f"the body is not gzip: {cause}") from cause
    if len(found) > limits.body_bytes:
        raise Refusal(f"the body is larger than {limits.body_bytes} bytes when unpacked", status=413)
    return found


def _value(value: AnyValue) -> Json:
    """A typed value; bytes, maps and none become an object, which is not kept."""
    kind: Any = value.WhichOneof("value")
    if kind == "array_value":
        items: Sequence[AnyValue] = value.array_value.values
        return [_value(item) for item in items]
    found: Json = getattr(value, kind) if kind in ("string_value", "bool_value", "int_value", "double_value") else {}
    return found
