"""HTTP/1.1 by hand, for the fake model server and for clients that misbehave: no library stands between."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kifu.errors import KifuError

MAX_HEAD = 65_536


class WireError(KifuError):
    """The other side closed the connection before its answer was complete, or did not speak HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request as a server received it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: whole, or as pieces that are sent as they come. ``drop`` closes the connection instead."""

    status: int = 200
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None
    kind: str = "application/json"
    drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client got."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:  # noqa: ANN401 - JSON
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def events(self) -> list[Any]:
        """Data of server-sent events that are JSON, in order; other data as text."""
        found: list[Any] = []
        for line in self.text.splitlines():
            if line.startswith("data:"):
                data = line[5:].strip()
                try:
                    found.append(json.loads(data))
                except ValueError:
                    found.append(data)
        return found

    @property
    def shown(self) -> str:
        """Status and the beginning of the body, for reasons."""
        return f"{self.status} {' '.join(self.text.split())[:160]}".strip()


Handler = Callable[[Asking], Awaitable[Reply]]


@asynccontextmanager
async def listening(handle: Handler, *, port: int = 0) -> AsyncIterator[str]:
    """Serve on the loopback interface while the block runs; gives the address. 0 takes a free port."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            while await _serve_one(reader, writer, handle):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, WireError):
            pass
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=MAX_HEAD, backlog=4096)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in tuple(open_writers):
            writer.close()
        await asyncio.sleep(0)


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    first, headers = _head(head)
    words = first.split(" ")
    if len(words) != 3:
        raise WireError(f"not a request line: {first[:80]!r}")
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b"".join([piece async for piece in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    reply = await handle(Asking(method=words[0], path=words[1], headers=headers, body=body))
    if reply.drop:
        return False
    lines = [f"HTTP/1.1 {reply.status} X", f"content-type: {reply.kind}"]
    if reply.pieces is None:
        writer.write("\r\n".join([*lines, f"content-length: {len(reply.body)}", "", ""]).encode() + reply.body)
        await writer.drain()
        return True
    writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
    async for piece in reply.pieces:
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def ask(
    url: str,
    *,
    body: Mapping[str, Any] | bytes | None = None,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    leave_after: int | None = None,
) -> Answer:
    """Ask once, on a connection of its own.

    Args:
        url: whole address.
        body: a JSON object, or bytes as they are.
        method: of HTTP.
        headers: besides those that HTTP needs.
        timeout_s: for everything.
        leave_after: close the connection after so many bytes of the answer's body.

    Raises:
        WireError: no complete answer came.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(url, body, method=method, headers=headers or {}, leave_after=leave_after)
    except TimeoutError as cause:
        raise WireError(f"no answer within {timeout_s:g} s") from cause
    except (ConnectionError, asyncio.IncompleteReadError, OSError) as cause:
        raise WireError(f"the connection ended before the answer was complete: {cause}") from cause


async def _ask(
    url: str,
    body: Mapping[str, Any] | bytes | None,
    *,
    method: str,
    headers: Mapping[str, str],
    leave_after: int | None,
) -> Answer:
    where = urlsplit(url)
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    path = f"{where.path or '/'}{'?' + where.query if where.query else ''}"
    lines = [f"{method} {path} HTTP/1.1", f"host: {where.netloc}", "connection: close"]
    if body is not None:
        lines += [f"content-length: {len(data)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=MAX_HEAD)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
        with suppress(ConnectionError):  # a server may refuse a large body before it has read it
            await writer.drain()
        first, found = _head(await reader.readuntil(b"\r\n\r\n"))
        status = int(first.split(" ")[1])
        got = b""
        async for piece in _body(reader, found):
            got += piece
            if leave_after is not None and len(got) >= leave_after:
                break
        return Answer(status=status, headers=found, body=got)
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", ""):
        async for piece in _chunks(reader):
            yield piece
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(MAX_HEAD):
            yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


def _head(data: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = data.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}
