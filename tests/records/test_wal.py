"""The log tells a torn tail from changed bytes and makes frames durable in groups."""

import asyncio
import json
import os
import struct
import threading
import zlib
from pathlib import Path

import pytest

from kifu.errors import AlteredError, FormatError, StorageError
from kifu.records.wal import Frame, WalWriter, read_wal, wal_files

FRAMES = [Frame(kind="note", id=f"t{at}", body={"at": at, "text": "é" * at}) for at in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log file of three frames."""
    writer = WalWriter(tmp_path, number=0)
    for frame in FRAMES:
        writer.append(frame).result()
    writer.close()
    return tmp_path / "000000.log"


def test_the_file_is_as_documented(path: Path) -> None:
    data = path.read_bytes()
    assert data[:12] == b"KIFUWAL\n" + struct.pack("<I", 1)
    at = 12
    for number, frame in enumerate(FRAMES):
        sequence, length, checksum, head = struct.unpack("<IIII", data[at : at + 16])
        payload = data[at + 16 : at + 16 + length]
        assert (sequence, zlib.crc32(payload), zlib.crc32(data[at : at + 12])) == (number, checksum, head)
        assert json.loads(payload) == {"kind": "note", "id": frame.id, "body": frame.body}
        at += 16 + length
    assert at == len(data)


def test_frames_come_back_in_order(path: Path) -> None:
    assert read_wal(path).frames == tuple(FRAMES)


def test_every_flipped_byte_is_altered(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises((AlteredError, FormatError)) as caught:
            read_wal(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, AlteredError) or 8 <= at < 12


def test_every_cut_is_torn_and_keeps_the_frames_before_it(path: Path) -> None:
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        content = read_wal(path)
        assert content.frames == tuple(FRAMES[: len(content.frames)])
        assert content.size + content.torn_bytes == cut


def test_a_dropped_frame_is_altered(path: Path) -> None:
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 16)[0]
    path.write_bytes(data[:12] + data[12 + 16 + length :])
    with pytest.raises(AlteredError, match="frame 0 at byte 12: carries number 1"):
        read_wal(path)


@pytest.mark.parametrize("hole", ["tail", "block"])
def test_blocks_a_power_failure_kept_from_the_disk_are_torn(tmp_path: Path, hole: str) -> None:
    writer = WalWriter(tmp_path, number=0)
    writer.append(FRAMES[0]).result()
    writer.append(Frame(kind="note", id="t", body="x" * 4096)).result()
    writer.close()
    path = tmp_path / "000000.log"
    data = bytearray(path.read_bytes())
    if hole == "tail":
        data += bytes(700)
        path.write_bytes(data)
        assert (len(read_wal(path).frames), read_wal(path).torn_bytes) == (2, 700)
    else:
        data[1024:2048] = bytes(1024)
        path.write_bytes(data)
        assert len(read_wal(path).frames) == 1


def test_a_newer_log_is_refused(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<I", 9) + data[12:])
    with pytest.raises(FormatError, match="record format 9"):
        read_wal(path)


def test_frames_appended_together_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WalWriter(tmp_path, number=0)
    calls: list[int] = []
    real = os.fsync

    def counting(handle: int) -> None:
        calls.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", counting)
    with writer._lock:  # the thread takes the first frame and waits; the others gather behind it
        futures = [writer.append(frame) for frame in FRAMES * 20]
    for future in futures:
        future.result()
    writer.close()
    assert len(calls) <= 2
    assert len(read_wal(writer.path).frames) == 60


def test_a_coroutine_waits_without_blocking_the_loop(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, number=0)

    async def main() -> int:
        beats = 0
        waiting = asyncio.gather(*(asyncio.wrap_future(writer.append(frame)) for frame in FRAMES))
        while not waiting.done():
            beats += 1
            await asyncio.sleep(0)
        return beats

    assert asyncio.run(main()) > 0
    writer.close()


def test_who_stops_waiting_neither_takes_the_frame_back_nor_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = WalWriter(tmp_path, number=0)
    may_go_on, fsync = threading.Event(), os.fsync

    def held(handle: int) -> None:
        may_go_on.wait()
        fsync(handle)

    async def main() -> None:
        waiting = asyncio.ensure_future(asyncio.wrap_future(writer.append(FRAMES[0])))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", held)
        asyncio.run(main())
        may_go_on.set()
    writer.append(FRAMES[1]).result(timeout=20.0)
    writer.close()

    assert read_wal(writer.path).frames == tuple(FRAMES[:2])


def test_files_are_cut_only_before_the_present_one(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, number=4)
    writer.append(FRAMES[0]).result()
    writer.rotate()
    writer.append(FRAMES[1]).result()
    assert [path.name for path in wal_files(tmp_path)] == ["000004.log", "000005.log"]
    writer.cut()
    writer.close()
    assert [path.name for path in wal_files(tmp_path)] == ["000005.log"]
    assert read_wal(tmp_path / "000005.log").frames == (FRAMES[1],)


def test_a_closed_log_takes_no_frames(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, number=0)
    writer.close()
    with pytest.raises(StorageError, match="closed"):
        writer.append(FRAMES[0])
