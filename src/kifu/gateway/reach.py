"""Runs a program in a box and leads a port of the box's own loopback out, to its gateway.

It stands among the files of the box and is started there as ``python reach.py PORT PROGRAM ...``, on the standard
library alone. Its standard input is a socket to the starter of the box: for every connection it sends one end of a pair
there. When that socket closes the attempt is over, and the program ends. It shares the box with the program, so nothing
depends on its honesty: what it can reach, the program may reach as well.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes until their end, then tell the other side."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def join(one: socket.socket, other: socket.socket, *, ended: Callable[[], None] = lambda: None) -> None:
    """Carry bytes both ways, on threads of their own; both sockets are closed at the end."""

    def carry() -> None:
        back = threading.Thread(target=pump, args=(other, one), daemon=True)
        back.start()
        pump(one, other)
        back.join()
        one.close()
        other.close()
        ended()

    threading.Thread(target=carry, daemon=True).start()


def serve(listener: socket.socket, way: socket.socket) -> None:
    """Lead every connection out."""
    while True:
        near, _ = listener.accept()
        here, there = socket.socketpair()
        try:
            socket.send_fds(way, [b"c"], [there.fileno()])
        except OSError:
            here.close()
            near.close()
        else:
            join(near, here)
        there.close()


def end_with(way: socket.socket, program: "subprocess.Popen[bytes]") -> None:
    """End the program when the attempt is over."""
    with contextlib.suppress(OSError):
        while way.recv(1):
            pass
    program.kill()


def main() -> int:
    """Status of the program; above 128 where a signal ended it."""
    port, *arguments = sys.argv[1:]
    way = socket.socket(fileno=0)
    listener = socket.create_server(("127.0.0.1", int(port)))
    program = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    for work in ((serve, listener, way), (end_with, way, program)):
        threading.Thread(target=work[0], args=work[1:], daemon=True).start()
    status = program.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
