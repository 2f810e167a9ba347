"""Calls over HTTP: who asks, for which rollout, in which dialect, answered whole or as a stream."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kifu.errors import KifuError
from kifu.gateway.asked import Api, Asked
from kifu.gateway.body import parse_body, read_body
from kifu.gateway.captured import Captured
from kifu.gateway.gateway import Gateway
from kifu.gateway.keys import Grant, Role
from kifu.gateway.lineage import lineage_of, name_of
from kifu.gateway.refusal import Refusal
from kifu.gateway.rollout import Rollout, Underway
from kifu.gateway.streaming import EventStream
from kifu.gateway.wire import DIALECTS, Dialect
from kifu.gateway.wire.contract import Answer, Event
from kifu.gateway.wire.messages import require_limit

FRAMING = "conflicting_framing"
"""Code of a request that may hide another one: its connection is closed."""
MAX_DIGITS = 10
"""Of a count in a header."""
PING_S = 15
"""Seconds between signs of life in a stream that waits."""

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def secret_of(request: Request) -> str:
    """The secret of a request, in whichever header it is.

    Raises:
        Refusal: none, or two that differ.
    """
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        raise Refusal("both transfer-encoding and content-length say where the body ends; send one", code=FRAMING)
    found = []
    for value in request.headers.getlist("authorization"):
        scheme, _, secret = value.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Refusal("authorization: expected `Bearer KEY`", status=401, code="invalid_api_key")
        found.append(secret.strip())
    found += [value.strip() for value in request.headers.getlist("x-api-key")]
    if not found:
        raise Refusal(
            "no key: send `Authorization: Bearer KEY` or `x-api-key: KEY`", status=401, code="invalid_api_key"
        )
    if len(set(found)) > 1:
        raise Refusal("authorization and x-api-key hold different keys; send one", code="conflicting_keys")
    return found[0]


def grant_of(request: Request, gateway: Gateway, role: Role) -> Grant:
    """What the caller may do.

    Raises:
        Refusal: an unknown key, one for something else, or one whose rollout is not the one of the path.
    """
    grant = gateway.keys.find(secret_of(request))
    if grant is None:
        raise Refusal("nobody gave out this key", status=401, code="invalid_api_key")
    if grant.role is not role:
        raise Refusal(f"this key is for {grant.role} calls, not for {role} calls", status=403, code="permission_denied")
    named = request.path_params.get("rollout")
    if grant.rollout is not None and named is not None and named != grant.rollout:
        raise Refusal(
            f"the key belongs to rollout {grant.rollout}, the path names another one; use the base URL that came with "
            "the key",
            code="conflicting_rollout",
        )
    if grant.revoked:
        raise gateway.refuse_late()
    return grant


def rollout_of(request: Request, gateway: Gateway) -> Rollout:
    """The rollout a call belongs to."""
    grant = grant_of(request, gateway, Role.MODEL)
    assert grant.rollout is not None
    return gateway.rollout(grant.rollout)


def answering(api: Api, gateway: Gateway) -> Endpoint:
    """The endpoint of a dialect."""
    dialect = DIALECTS[api]

    async def endpoint(request: Request) -> Response:
        try:
            return await _answer(request, gateway, dialect)
        except Refusal as refusal:
            return refused(dialect, refusal)
        except KifuError as error:
            return refused(dialect, Refusal(str(error), status=500, code="internal_error"))

    return endpoint


def counting(gateway: Gateway) -> Endpoint:
    """``/v1/messages/count_tokens``."""
    dialect = DIALECTS["messages"]

    async def endpoint(request: Request) -> Response:
        try:
            rollout = rollout_of(request, gateway)
            asked, _ = await _read(request, gateway, dialect)
            return JSONResponse({"input_tokens": rollout.measure(asked)})
        except Refusal as refusal:
            return refused(dialect, refusal)

    return endpoint


def refused(dialect: Dialect, refusal: Refusal) -> JSONResponse:
    """An error in the dialect's own form."""
    headers = {"retry-after": "1"} if refusal.status in (429, 503) else {}
    if refusal.code == FRAMING:
        headers["connection"] = "close"
    return JSONResponse(dialect.error(refusal), status_code=refusal.status, headers=headers)


async def _read(request: Request, gateway: Gateway, dialect: Dialect) -> tuple[Asked, str]:
    """The call, and the digest of its body."""
    limits = gateway.desk.serving.limits
    data = await read_body(request.stream(), declared=request.headers.get("content-length"), limits=limits)
    asked = dialect.read(await parse_body(data, limits), limits)
    if asked.model not in gateway.desk.serving.models:
        known = ", ".join(gateway.desk.serving.models)
        raise Refusal(
            f"model: no model {asked.model[:80]!r}; served: {known}", status=404, field="model", code="model_not_found"
        )
    return asked, hashlib.sha256(f"{dialect.api}\n".encode() + data).hexdigest()


async def _answer(request: Request, gateway: Gateway, dialect: Dialect) -> Response:
    rollout = rollout_of(request, gateway)
    limits = gateway.desk.serving.limits
    asked, body = await _read(request, gateway, dialect)
    if dialect.api == "messages":
        asked = require_limit(asked)
    if gateway.under_way >= limits.calls:
        raise Refusal(f"{limits.calls} calls are under way; try again", status=429, code="rate_limit_exceeded")
    retry = request.headers.get("x-stainless-retry-count", "0")
    name = request.headers.get("idempotency-key", "")[:200]
    before = rollout.counts.replayed
    notes = lineage_of(request.headers, rollout.names, num_turns=rollout.num_turns)
    tries = int(retry) if retry.isdecimal() and len(retry) < MAX_DIGITS else 0
    call = rollout.begin(asked, body=body, retry=tries, retry_key=name, notes=notes)
    headers = _headers(asked, call, replayed=rollout.counts.replayed > before)
    answer = _about(gateway, rollout, asked=asked, call=call)
    if asked.stream:
        return EventStream(
            opening=_written(dialect.opening(answer)),
            closing=lambda: _closing(dialect, answer, call),
            ended=lambda whole: _ended(rollout, call, whole=whole),
            headers=headers,
            ping_s=PING_S,
            send_s=limits.send_s,
        )
    captured = await _finished(call)
    text = dialect.answer(replace(answer, call=captured))
    if await request.is_disconnected():
        rollout.mark(call.turn, "capture.disconnected")
        return Response(status_code=499)
    return JSONResponse(text, headers=headers, background=BackgroundTask(_delivered, call))


def _about(gateway: Gateway, rollout: Rollout, *, asked: Asked, call: Underway) -> Answer:
    name = name_of(rollout.key.id, call.turn, digits=24)
    return Answer(
        asked=asked,
        id=name,
        created=call.asked_at,
        prompt_ids=call.prompt_ids.tolist(),
        renderer=gateway.desk.renderer,
    )


async def _finished(call: Underway) -> Captured:
    """The durable answer; whoever waits may go away without stopping it.

    Raises:
        Refusal: it failed, or its rollout was sealed meanwhile.
    """
    try:
        return await asyncio.shield(call.task)
    except asyncio.CancelledError:
        if call.task.cancelled():
            raise Refusal("the rollout was sealed while the call was under way", status=410, code="sealed") from None
        raise


async def _closing(dialect: Dialect, answer: Answer, call: Underway) -> bytes:
    """The rest of a stream, which is there when the call is durable, so that no end is seen without its record."""
    try:
        captured = await _finished(call)
    except Refusal as refusal:
        kind = "error" if dialect.api in ("messages", "responses") else None
        return _written([Event(name=kind, data=dialect.error(refusal))])
    return _written(dialect.closing(replace(answer, call=captured)))


def _written(events: Iterable[Event]) -> bytes:
    """Events as they stand on the wire."""
    lines = (
        f"event: {event.name}\ndata: {event.text}\n\n" if event.name else f"data: {event.text}\n\n" for event in events
    )
    return "".join(lines).encode()


def _ended(rollout: Rollout, call: Underway, *, whole: bool) -> None:
    """Whether the client was there to the end of a stream; a failure it was told of is no answer delivered."""
    if not whole:
        rollout.mark(call.turn, "capture.disconnected")
    elif call.task.done() and not call.task.cancelled() and call.task.exception() is None:
        call.delivered = True


async def _delivered(call: Underway) -> None:
    call.delivered = True


def _headers(asked: Asked, call: Underway, *, replayed: bool) -> dict[str, str]:
    """What the client should know beside the answer."""
    lists: Mapping[str, tuple[str, ...]] = {
        "x-kifu-inert": asked.inert,
        "x-kifu-unknown": asked.unknown,
        "x-kifu-overridden": call.overridden,
    }
    found = {name: ",".join(quote(item, safe="._-") for item in items) for name, items in lists.items() if items}
    if call.withheld is not None:
        found["x-kifu-untrainable"] = quote(call.withheld, safe=" ._-,:")
    if replayed:
        found["x-kifu-replayed"] = "true"
    return {**found, "x-kifu-turn": str(call.turn)}
