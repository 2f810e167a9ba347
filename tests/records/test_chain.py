"""Chained files name every change and forgive only what a crash can leave."""

import hashlib
import json
from pathlib import Path

import pytest

from kifu.errors import AlteredError, StorageError
from kifu.records import GENESIS, ChainedLog, read_chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A chained file of three lines."""
    log = ChainedLog(tmp_path / "log.jsonl", name="test")
    for number in range(3):
        log.append({"number": number, "name": "é", "half": 0.5})
    log.close()
    return tmp_path / "log.jsonl"


def test_an_outsider_verifies_the_chain_with_json_and_hashlib(path: Path) -> None:
    previous = "0" * 64
    for text in path.read_text().splitlines():
        line = json.loads(text)
        digest = line.pop("digest")
        assert line["previous"] == previous
        assert hashlib.sha256(json.dumps(line, sort_keys=True, separators=(",", ":")).encode()).hexdigest() == digest
        previous = digest
    assert read_chain(path).head == previous


def test_every_flipped_byte_is_altered_and_never_taken_for_torn(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(AlteredError, match=r"log\.jsonl, line"):
            read_chain(path)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "1e999", "[" * 100_000 + "]" * 100_000], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("at", [1, 3])
def test_what_canonical_json_cannot_hold_is_altered(path: Path, value: str, at: int) -> None:
    lines = path.read_text().splitlines()
    lines[at - 1] = f'{lines[at - 1][:-1]},"x":{value}}}'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(AlteredError, match=rf"log\.jsonl, line {at}: the line does not match its own digest"):
        read_chain(path)


@pytest.mark.parametrize("order", [(0, 2), (1, 0, 2), (0, 1, 1, 2), (1, 2)], ids=str)
def test_dropped_swapped_and_repeated_lines_are_altered(path: Path, order: tuple[int, ...]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[at] for at in order))
    with pytest.raises(AlteredError, match="dropped, moved or added"):
        read_chain(path)


def test_an_unfinished_last_line_is_torn_and_cut_by_the_next_writer(path: Path) -> None:
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last)):
        path.write_bytes(whole[: len(whole) - cut])
        chain = read_chain(path)
        assert (len(chain.lines), chain.torn_bytes) == (2, len(last) - cut)
    log = ChainedLog(path, name="test")
    log.append({"number": 2})
    log.close()
    assert [line["number"] for line in read_chain(path).lines] == [0, 1, 2]


def test_a_tail_cut_at_a_line_end_is_found_against_a_noted_head(path: Path) -> None:
    head = read_chain(path).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert len(read_chain(path).lines) == 2
    with pytest.raises(AlteredError, match=f"{head[:12]} was noted as its head: lines were cut off or rewritten"):
        read_chain(path, expected_head=head)


def test_a_head_noted_earlier_is_still_in_the_file(path: Path) -> None:
    noted = read_chain(path).lines[0]["digest"]
    assert len(read_chain(path, expected_head=noted).lines) == 3


def test_an_absent_file_is_empty(tmp_path: Path) -> None:
    assert read_chain(tmp_path / "none").head == GENESIS


def test_a_closed_log_takes_no_lines(tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "log.jsonl", name="test")
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.append({})
