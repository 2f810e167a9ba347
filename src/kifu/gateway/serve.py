"""Listening: on the loopback interface unless somebody says otherwise and gives a key for administration."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn
from h11 import IDLE, LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from kifu.errors import UsageError
from kifu.gateway.app import build_app
from kifu.gateway.gateway import Gateway

MAX_HEADER_BYTES = 65_536
KEEP_ALIVE_S = 30


FEW_LINES = 256
FEW_BYTES = 32
"""A line of a chunked body, on average, where one piece of it has more than a few lines."""


class _Connection(H11Protocol):
    """Refuses bodies that are nearly all framing: a megabyte in chunks of one byte would hold everybody up."""

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request."""
        lines = data.count(b"\r\n")
        if lines > FEW_LINES and len(data) < FEW_BYTES * lines and self._is_chunked(data):
            with suppress(LocalProtocolError):  # an answer has begun already
                self.send_400_response("the body comes in chunks of a few bytes; send larger ones")
            self.transport.close()
            return
        super().data_received(data)

    def _is_chunked(self, data: bytes) -> bool:
        if self.conn.their_state is IDLE:
            return b"chunked" in data[:MAX_HEADER_BYTES].lower()
        return any(name == b"transfer-encoding" for name, _ in self.headers)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the event loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, *, admin_key: str | None) -> str | None:
    """A warning for addresses others can reach.

    Raises:
        UsageError: such an address without a key for administration.
    """
    if is_loopback(host):
        return None
    if not admin_key:
        raise UsageError(
            f"host {host}: others can reach this address, so a key for administration is needed: set "
            "KIFU_GATEWAY_ADMIN_KEY, or listen on 127.0.0.1"
        )
    return f"listening on {host}, which others can reach; calls travel unencrypted, so put TLS in front of it"


@asynccontextmanager
async def serving(
    gateway: Gateway, *, host: str = "127.0.0.1", port: int = 0, admin_key: str | None = None
) -> AsyncIterator[str]:
    """Serve while the block runs; gives the address.

    Args:
        gateway: what is served.
        host: interface.
        port: 0 takes a free one.
        admin_key: the gateway's; needed for other interfaces than the loopback.
    """
    check_binding(host, admin_key=admin_key)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is; what is accepted inherits
    # it. With the algorithm on, every streamed answer waits some 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # What is closed towards a client that takes nothing would wait for it in the kernel, for ever. Every accepted
        # connection inherits this.
        patience_ms = round(1000 * gateway.desk.serving.limits.send_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
    try:
        listener.bind((host, port))
    except OSError as cause:
        listener.close()
        raise UsageError(f"{host}:{port} cannot be listened on: {cause.strerror}; choose another port") from cause
    config = uvicorn.Config(
        build_app(gateway),
        http=_Connection,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=2 * gateway.desk.serving.limits.calls,
        server_header=False,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise UsageError(f"{host}:{port}: the server ended before it listened")
            await asyncio.sleep(0.005)
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task
        listener.close()
