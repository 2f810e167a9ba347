"""A stream of events: opened at once or with its end, whichever comes first, and written in few pieces."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PATIENCE_S = 0.02
"""Seconds that an opening waits, so that a stream whose end is there by then is written in one piece."""
PIECE = 65_536
"""Bytes of one write; a client must take each in time."""
PING = b": ping\n\n"


class EventStream(Response):
    """Server-sent events whose end is known all at once.

    Args:
        opening: bytes that need no answer yet.
        closing: waits for the answer and gives the rest; it is cancelled when the client leaves.
        ended: told at the end whether the client was there for all of it.
        headers: of the answer.
        ping_s: seconds between signs of life while it waits.
        send_s: for the client to take one piece.
    """

    def __init__(
        self,
        *,
        opening: bytes,
        closing: Callable[[], Awaitable[bytes]],
        ended: Callable[[bool], None],
        headers: Mapping[str, str],
        ping_s: float,
        send_s: float,
    ) -> None:
        plain = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
        self.status_code = 200
        self.background = None
        self.init_headers({**plain, "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._opening = opening
        self._closing = closing
        self._ended = ended
        self._ping_s = ping_s
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        del scope
        rest = asyncio.ensure_future(self._closing())
        gone = asyncio.ensure_future(_gone(receive))
        whole = False
        try:
            async with asyncio.timeout(self._send_s):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            whole = await self._write(send, rest, gone)
        except TimeoutError:
            return  # the client takes nothing; the server closes what is not complete
        finally:
            for task in (rest, gone):
                task.cancel()
            self._ended(whole)
            await asyncio.gather(rest, gone, return_exceptions=True)

    async def _write(self, send: Send, rest: "asyncio.Future[bytes]", gone: "asyncio.Future[None]") -> bool:
        """Whether the client was there to the end."""
        begun = False
        while not rest.done() and not gone.done():
            wait_s = self._ping_s if begun else PATIENCE_S
            await asyncio.wait((rest, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not rest.done() and not gone.done():
                await self._send(send, PING if begun else self._opening)
                begun = True
        if gone.done():
            return False
        data = (b"" if begun else self._opening) + rest.result()
        for at in range(0, max(len(data), 1), PIECE):
            await self._send(send, data[at : at + PIECE], more=at + PIECE < len(data))
        return not gone.done()

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_s):
            await send({"type": "http.response.body", "body": data, "more_body": more})


async def _gone(receive: Receive) -> None:
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
