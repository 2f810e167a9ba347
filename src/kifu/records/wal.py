r"""The write-ahead log: append-only files of checksummed frames, made durable in groups on a thread of their own.

File: 12 bytes ``KIFUWAL\n`` and the format version (uint32), then frames. Frame: 16 bytes of header (sequence number,
payload length, CRC-32 of the payload, CRC-32 of the 12 bytes before; all uint32, little endian), then the payload:
canonical JSON ``{"body": ..., "id": ..., "kind": ...}``. A header of its own checksum tells a frame that was being
written (shorter than its header says: torn) from one whose bytes were changed (altered).
"""

import os
import queue
import struct
import threading
import zlib
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kifu.errors import AlteredError, KifuError, StorageError
from kifu.records.chain import canonical, parsed, write_all
from kifu.records.crash import crash_point
from kifu.records.files import fsync_folder, make_folder, storing
from kifu.records.schema import FORMAT_VERSION, check_format

MAGIC = b"KIFUWAL\n"
_FILE_HEADER = struct.Struct("<8sI")
_FRAME_HEADER = struct.Struct("<IIII")
_HOLE = bytes(512)

Durable: TypeAlias = "Future[None]"
"""Done when the frame is on the disk: ``.result()`` in a thread, ``await asyncio.wrap_future(...)`` in a coroutine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One entry of the log."""

    kind: str
    """``trajectory`` (the body is its row) or ``note`` (an accepted call of a rollout that is not finished)."""
    id: str
    """Trajectory id."""
    body: Any
    """JSON."""

    def payload(self) -> bytes:
        """The frame's bytes without header."""
        return canonical({"kind": self.kind, "id": self.id, "body": self.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class WalContent:
    """What one log file holds."""

    frames: tuple[Frame, ...]
    size: int
    """Bytes up to the end of the last whole frame."""
    torn_bytes: int = 0
    """Bytes of a frame that was being written when its writer died, or is being written now."""


def read_wal(path: Path) -> WalContent:
    """Read the whole frames of a log file.

    Raises:
        AlteredError: a byte was changed or a frame dropped, named by number and position.
        FormatError: the file was written by a newer kifu.
    """
    data = path.read_bytes()
    if len(data) < _FILE_HEADER.size:
        if not _FILE_HEADER.pack(MAGIC, FORMAT_VERSION).startswith(data):
            raise AlteredError(f"{path}: starts with {data!r}, expected {MAGIC!r}; restore it from a copy")
        return WalContent(frames=(), size=0, torn_bytes=len(data))
    magic, version = _FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise AlteredError(f"{path}: starts with {magic!r}, expected {MAGIC!r}; restore it from a copy")
    check_format(version, str(path))
    frames: list[Frame] = []
    at = _FILE_HEADER.size
    while at < len(data):
        where = f"{path}, frame {len(frames)} at byte {at}"
        payload = _read_frame(data, at, where=where, number=len(frames))
        if payload is None:
            break
        frames.append(_frame(payload, where))
        at += _FRAME_HEADER.size + len(payload)
    return WalContent(frames=tuple(frames), size=at, torn_bytes=len(data) - at)


def _frame(payload: bytes, where: str) -> Frame:
    try:
        fields = parsed(payload)
        return Frame(kind=fields["kind"], id=fields["id"], body=fields["body"])
    except (ValueError, KeyError, TypeError) as cause:
        raise AlteredError(
            f"{where}: holds {payload[:40]!r}, no entry of a log; restore the file from a copy"
        ) from cause


def _read_frame(data: bytes, at: int, *, where: str, number: int) -> bytes | None:
    """The payload of the frame at ``at``; None when the rest of the file is a torn tail."""
    if len(data) - at < _FRAME_HEADER.size or not any(memoryview(data)[at:]):
        return None
    sequence, length, checksum, header_checksum = _FRAME_HEADER.unpack_from(data, at)
    if zlib.crc32(data[at : at + 12]) != header_checksum:
        raise AlteredError(f"{where}: its header was changed; restore the file from a copy")
    if sequence != number:
        raise AlteredError(f"{where}: carries number {sequence}; a frame was dropped, moved or added")
    start = at + _FRAME_HEADER.size
    payload = data[start : start + length]
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != checksum:
        if start + length == len(data) and _HOLE in payload:
            return None  # payloads hold no zero bytes: blocks that a power failure kept from the disk
        raise AlteredError(f"{where}: its payload was changed; restore the file from a copy")
    return payload


class WalWriter:
    """Appends frames to the newest log file. Frames appended together share one fsync; the caller is never blocked."""

    def __init__(self, folder: Path, *, number: int) -> None:
        """Start a file; older ones stay until they are removed by `cut`."""
        self.folder = make_folder(folder)
        self._number = number
        self._handle = -1
        self._size = 0
        self._sequence = 0
        self._broken: KifuError | None = None
        self._start_file()
        self._queue: queue.SimpleQueue[tuple[bytes, Durable] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="kifu-wal", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The file now written."""
        return wal_path(self.folder, self._number)

    def append(self, frame: Frame) -> Durable:
        """Queue a frame; the future is done when it is durable.

        It fails with DiskFullError when there is no space (the log is then as before, and later frames may succeed)
        and with StorageError when the device fails (then the log takes nothing more).
        """
        if self._handle < 0:
            raise StorageError(f"{self.folder}: the log is closed")
        durable: Durable = Future()
        durable.set_running_or_notify_cancel()  # whoever waits may go away; a cancelled future would end the thread
        self._queue.put((frame.payload(), durable))
        return durable

    def rotate(self) -> None:
        """Go on in a new file. The caller makes sure that no frame is pending in between."""
        with self._lock:
            old, number = self._handle, self._number
            try:
                self._number += 1
                self._start_file()
            except KifuError:
                self._handle, self._number = old, number
                raise
            os.close(old)

    def cut(self, keep_from: int | None = None) -> None:
        """Remove the files before the present one (or before ``keep_from``)."""
        with storing("the log", self.folder):
            for path in wal_files(self.folder):
                if int(path.stem) < (self._number if keep_from is None else keep_from):
                    path.unlink()
            fsync_folder(self.folder)

    def close(self) -> None:
        """Write what is pending, then stop; closing twice is fine."""
        if self._handle >= 0:
            self._queue.put(None)
            self._thread.join()
            os.close(self._handle)
            self._handle = -1

    def _start_file(self) -> None:
        path = self.path
        with storing("the log", path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_all(handle, _FILE_HEADER.pack(MAGIC, FORMAT_VERSION))
                os.fsync(handle)
                fsync_folder(self.folder)
            except OSError:
                os.close(handle)
                path.unlink(missing_ok=True)
                raise
        self._handle, self._size, self._sequence = handle, _FILE_HEADER.size, 0

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            with suppress(queue.Empty):
                while batch[-1] is not None:
                    batch.append(self._queue.get_nowait())
            with self._lock:
                settled = self._write([item for item in batch if item is not None])
            for durable, error in settled:  # outside the lock: callbacks may wait for locks of their own
                if error is None:
                    durable.set_result(None)
                else:
                    durable.set_exception(error)
            if batch[-1] is None:
                return

    def _write(self, pending: list[tuple[bytes, Durable]]) -> list[tuple[Durable, KifuError | None]]:
        """Write and fsync a group; when the disk is full, try its frames one by one."""
        error: KifuError | None = None
        if pending:
            try:
                self._commit([payload for payload, _ in pending])
            except KifuError as failure:
                error = failure
        if error is not None and self._broken is None and len(pending) > 1:
            return [settled for item in pending for settled in self._write([item])]
        return [(durable, error) for _, durable in pending]

    def _commit(self, payloads: list[bytes]) -> None:
        if self._broken is not None:
            raise self._broken
        data = b"".join(_framed(payload, self._sequence + at) for at, payload in enumerate(payloads))
        with storing("the log", self.path):
            try:
                write_all(self._handle, data)
            except OSError:
                os.ftruncate(self._handle, self._size)
                os.lseek(self._handle, self._size, os.SEEK_SET)
                raise
        crash_point("wal.before_fsync")
        try:
            with storing("the log", self.path):
                os.fsync(self._handle)
        except KifuError as error:  # what the kernel kept of the pages is unknown; only opening again can tell
            self._broken = error
            raise
        crash_point("wal.after_fsync")
        self._size += len(data)
        self._sequence += len(payloads)


def _framed(payload: bytes, sequence: int) -> bytes:
    if len(payload) >= 1 << 32:
        raise StorageError(f"a log frame of {len(payload)} bytes exceeds 4 GiB; cut tool results before recording them")
    head = struct.pack("<III", sequence, len(payload), zlib.crc32(payload))
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def wal_path(folder: Path, number: int) -> Path:
    """Name of a log file."""
    return folder / f"{number:06d}.log"


def wal_files(folder: Path) -> list[Path]:
    """The log files of a folder, oldest first."""
    return sorted(folder.glob("[0-9]*.log")) if folder.exists() else []
