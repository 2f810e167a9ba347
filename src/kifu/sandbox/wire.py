"""What crosses between the supervisor and a fork server: messages, and trees of files. Standard library only.

A message is its length in four bytes and JSON; descriptors travel with the first of them. A tree is a sequence of
entries: kind (one byte), mode, length of the path, length of the data, path, data. ``END`` closes it; its data is JSON.
"""

import json
import os
import socket
import struct
from collections.abc import Iterator

FILE, FOLDER, LINK, GONE, END = b"F", b"D", b"L", b"X", b"E"
ENTRY = struct.Struct("!cHIQ")
LINK_NUMBER = 3
"""Of the descriptor by which a program writes to its link."""
MAX_MESSAGE = 64 << 20
_HANDLE = struct.Struct("i")


def send(sock: socket.socket, message: object, handles: tuple[int, ...] = ()) -> None:
    """Send one message, with descriptors."""
    body = json.dumps(message).encode()
    head = len(body).to_bytes(4, "big")
    if handles:
        socket.send_fds(sock, [head], list(handles))
        sock.sendall(body)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    """The next message and its descriptors; None when the other side is gone."""
    room = socket.CMSG_LEN(16 * _HANDLE.size)
    # socket.recv_fds forgets its flags, and a descriptor must never reach a program that was not given it.
    head, extra, _, _ = sock.recvmsg(4, room, socket.MSG_CMSG_CLOEXEC)
    handles = [found[0] for level, kind, data in extra if _is_handles(level, kind) for found in _whole(data)]
    try:
        message = _rest(sock, head)
    except BaseException:
        _close(handles)
        raise
    if message is None:
        _close(handles)
        return None, []
    return message, handles


def _rest(sock: socket.socket, head: bytes) -> dict[str, object] | None:
    head += _take(sock, 4 - len(head)) if head else b""
    if len(head) < 4:
        return None
    length = int.from_bytes(head, "big")
    if length > MAX_MESSAGE:
        raise ValueError(f"a message of {length} bytes, expected at most {MAX_MESSAGE}")
    body = _take(sock, length)
    if len(body) < length:
        return None
    message: dict[str, object] = json.loads(body)
    return message


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)


def _is_handles(level: int, kind: int) -> bool:
    return level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS


def _whole(data: bytes) -> Iterator[tuple[int]]:
    return _HANDLE.iter_unpack(data[: len(data) - len(data) % _HANDLE.size])


def _take(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count > 0:
        part = sock.recv(count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def entry(kind: bytes, path: bytes, *, mode: int = 0, data: bytes = b"") -> bytes:
    """One entry of a stream."""
    return ENTRY.pack(kind, mode, len(path), len(data)) + path + data


def entries(handle: int) -> Iterator[tuple[bytes, int, bytes, bytes]]:
    """The entries of a stream until its end: kind, mode, path, data.

    Raises:
        ValueError: the stream ends before its end.
    """
    while True:
        kind, mode, path_bytes, data_bytes = ENTRY.unpack(_read(handle, ENTRY.size))
        path = _read(handle, path_bytes)
        yield kind, mode, path, _read(handle, data_bytes)
        if kind == END:
            return


def write_all(handle: int, data: bytes) -> None:
    """Write everything."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _read(handle: int, count: int) -> bytes:
    parts = []
    while count > 0:
        part = os.read(handle, min(count, 1 << 20))
        if not part:
            raise ValueError("the stream of files ends early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
