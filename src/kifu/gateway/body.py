"""A body from the network, read as hostile input: bounded in size, time, depth and range."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect

from kifu.gateway.refusal import Refusal
from kifu.gateway.settings import Limits

_ELSEWHERE = 262_144
"""Bytes from which a body is parsed on another thread, so that other clients are not kept waiting."""
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


async def read_body(stream: AsyncIterator[bytes], *, declared: str | None, limits: Limits) -> bytes:
    """Take a body from the network.

    Args:
        stream: its pieces.
        declared: the header that says its length.
        limits: how long and how large it may be.

    Raises:
        Refusal: too large or too slow.
    """
    too_large = Refusal(f"the body is larger than {limits.body_bytes} bytes", status=413, code="request_too_large")
    if declared is not None and declared.isdecimal() and int(declared) > limits.body_bytes:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.read_s):
            async for piece in stream:
                size += len(piece)
                if size > limits.body_bytes:
                    raise too_large
                pieces.append(piece)
    except TimeoutError as cause:
        raise Refusal(f"the body did not arrive within {limits.read_s} s", status=408, code="timeout") from cause
    except ClientDisconnect as gone:
        raise Refusal("the client left before its body had arrived", status=499, code="disconnected") from gone
    return b"".join(pieces)


async def parse_body(data: bytes, limits: Limits) -> dict[str, Any]:
    """Read a JSON object strictly: UTF-8, no repeated keys, no NaN, finite numbers, bounded depth.

    Raises:
        Refusal: it is something else.
    """
    if len(data) > _ELSEWHERE:
        return await asyncio.to_thread(_parse, data, limits)
    return _parse(data, limits)


def _parse(data: bytes, limits: Limits) -> dict[str, Any]:
    depth = 0
    for match in _TOKENS.finditer(data):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(match.group(), 0)
        if depth > limits.depth:
            raise _bad(f"JSON nested deeper than {limits.depth} levels at byte {match.start()}")
    try:
        found = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as cause:
        raise _bad(f"the body is not JSON in UTF-8: {cause}") from cause
    if not isinstance(found, dict):
        raise _bad(f"the body is a JSON {type(found).__name__}, expected an object")
    return found


def _bad(message: str) -> Refusal:
    return Refusal(message, code="invalid_json")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"number {text[:40]} is too large")
    return value


def _bounded(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"integer {text[:40]} has {len(text)} digits, at most 20 are read")
    return int(text)
