"""Scalars in TensorBoard's event files, written by hand: neither torch nor TensorBoard is needed.

A file is a sequence of TFRecords: length (uint64), masked CRC-32C of the length, payload, masked CRC-32C of the
payload, all little-endian. The payload is a protocol-buffer ``Event``: wall_time = 1 (double), step = 2 (int64),
file_version = 3 (string) or summary = 5, which repeats value = 1 with tag = 1 (string) and simple_value = 2 (float).
"""

import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kifu.records.chain import write_all
from kifu.records.files import storing

_MASK_DELTA = 0xA282EAD8
_FLOAT_MAX = 3.4028234663852886e38
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of ``data``."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", _masked(length)) + payload + struct.pack("<I", _masked(payload))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _float(value: float) -> bytes:
    if abs(value) > _FLOAT_MAX:
        value = math.copysign(math.inf, value)
    return struct.pack("<f", value)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _event(wall_time: float, *, step: int, body: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + body


class EventWriter:
    """Appends scalars to one event file; every write is on disk for readers when it returns.

    Args:
        folder: made if missing. TensorBoard shows each folder as one run.
        clock: Unix time in seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        now = clock()
        self.path = folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        with storing("events for TensorBoard", self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        self._write(_event(now, step=0, body=_field(3, b"brain.Event:2")))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point for every tag of ``values``."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + b"\x15" + _float(value)) for tag, value in values.items()
        )
        self._write(_event(self._clock(), step=step, body=_field(5, summary)))

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        with storing("events for TensorBoard", self.path):
            write_all(self._file.fileno(), _record(event))
