"""Runs a program in a box and leads a port of the box's own loopback out, to its gateway.

It stands among the files of the box and is started there as ``python reach.py PORT PROGRAM ...``, on the standard
library alone. Two pipes lead to the starter of the box, which carries connections with the same `Streams`. It shares
the box with the program, so nothing outside depends on its honesty: what it can do, the program may do as well.
"""

import asyncio
import itertools
import os
import struct
import sys
from collections.abc import Awaitable, Callable

CONNECTIONS = 16
"""At once, on either side; further ones wait."""
MOST = 3 * CONNECTIONS
"""That the other side may have begun: what it has ended already may still be under way here."""
LINK = "KIFU_LINK"
"""Variable that holds the number of the descriptor to write to; the standard input is read from."""
PIECE = 32_768
"""Largest frame."""
WAITING = 16
"""Frames of a connection that wait to be written."""
HEAD = struct.Struct("!II")
"""Number of the connection, and length of the frame that follows."""
END, OPEN, RESET = 0, 0xFFFF_FFFE, 0xFFFF_FFFF
"""Lengths that say: nothing more in this direction; it begins; it is gone."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Streams:
    """Connections carried in frames over one pair of pipes.

    The other side is not trusted: what it sends costs a bounded amount of memory, and it can stop nothing but itself.

    Args:
        reader: frames of the other side.
        writer: frames to it.
        opened: makes the local end of a connection that the other side begins; None where it may begin none.
        most: connections at once that the other side may have begun; more are reset.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        opened: "Callable[[], Awaitable[Ends]] | None" = None,
        most: int = MOST,
    ) -> None:
        self.lost = 0
        """Connections whose local end could not be made."""
        self._reader, self._writer = reader, writer
        self._opened, self._most = opened, most
        self._queues: dict[int, asyncio.Queue[tuple[int, bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0
        self._lock = asyncio.Lock()
        self._gate = asyncio.Semaphore(CONNECTIONS)

    async def run(self) -> None:
        """Until the other side is gone or sends what is no frame; then every connection ends."""
        try:
            for count in itertools.count(1):
                number, length = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if PIECE < length < OPEN:
                    return
                data = await self._reader.readexactly(length) if END < length < OPEN else b""
                if length == OPEN:
                    await self._begin(number)
                elif number in self._queues:  # else it is over here, and the other side has not heard yet
                    await self._queues[number].put((length, data))
                if count % 64 == 0:
                    await asyncio.sleep(0)  # frames that are here already are read without a pause
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def carry(self, ends: Ends) -> None:
        """Carry a connection that begins here to its end."""
        async with self._lock:  # so that numbers rise in the order in which the other side hears them
            self._last = number = self._last + 1
            self._queues[number] = asyncio.Queue(WAITING)
            self._writer.write(HEAD.pack(number, OPEN))
            await self._writer.drain()
        await self._carried(number, ends)

    async def _begin(self, number: int) -> None:
        """Answer a connection that the other side begins, under a number that none had before."""
        if self._opened is None or number <= self._last:
            return
        self._last = number
        if len(self._queues) >= self._most:
            await self._send(number, RESET)
            return
        self._queues[number] = asyncio.Queue(WAITING)
        task = asyncio.ensure_future(self._answer(number, self._opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, opened: "Callable[[], Awaitable[Ends]]") -> None:
        async with self._gate:  # what waits has no local end, and so costs no descriptor of the host
            try:
                ends = await opened()
            except OSError:
                self.lost += 1
                self._forget(number)
                await self._send(number, RESET)
                return
            await self._carried(number, ends)

    async def _carried(self, number: int, ends: Ends) -> None:
        reader, writer = ends
        ways = [asyncio.ensure_future(self._out(number, reader)), asyncio.ensure_future(self._in(number, writer))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            if any(way.exception() for way in done):
                writer.transport.abort()
                await self._send(number, RESET)
        except OSError:
            pass  # the pipe itself is gone
        finally:
            for way in ways:
                way.cancel()
            self._forget(number)
            writer.close()  # what was written is still sent

    def _forget(self, number: int) -> None:
        queue = self._queues.pop(number)
        while not queue.empty():  # who waits to put something in must not wait for ever
            queue.get_nowait()

    async def _out(self, number: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE):
            await self._send(number, len(data), data)
        await self._send(number, END)

    async def _in(self, number: int, writer: asyncio.StreamWriter) -> None:
        queue = self._queues[number]
        while True:
            length, data = await queue.get()
            if length == RESET:
                raise ConnectionResetError
            if length == END:
                break
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        await writer.drain()

    async def _send(self, number: int, length: int, data: bytes = b"") -> None:
        async with self._lock:
            self._writer.write(HEAD.pack(number, length) + data)
            await self._writer.drain()


async def ends_of(read: int, write: int) -> "tuple[Ends, Callable[[], None]]":
    """Two descriptors, which it takes over, as a reader and a writer, and what closes both."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2 * PIECE)
    source, sink = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)  # both belong to this from here on
    coming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    try:
        going, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sink)
    except BaseException:
        coming.close()
        raise

    def close() -> None:
        coming.close()
        if not going.is_closing():
            going.abort()

    return (reader, asyncio.StreamWriter(going, protocol, None, loop)), close


async def main() -> int:
    """Status of the program; above 128 where a signal ended it."""
    port, *arguments = sys.argv[1:]
    ends, _ = await ends_of(0, int(os.environ.pop(LINK)))
    streams = Streams(*ends)
    gate = asyncio.Semaphore(CONNECTIONS)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with gate:
            await streams.carry((reader, writer))

    server = await asyncio.start_server(lead, "127.0.0.1", int(port))
    running = asyncio.ensure_future(streams.run())
    try:
        program = await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.DEVNULL)
    except OSError as error:
        print(f"{arguments[0]}: cannot be started in the box: {error.strerror}", file=sys.stderr)
        return 127
    running.add_done_callback(lambda _: program.kill())
    status = await program.wait()
    server.close()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    found = asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(found)  # nothing here is worth waiting for
