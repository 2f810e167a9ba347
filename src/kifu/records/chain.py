"""JSON-lines files whose lines are chained by digest: the manifest, the plan, the list of weights.

A line is canonical JSON (sorted keys, no spaces, ASCII). Its ``digest`` is the SHA-256 of the same line without that
field, its ``previous`` is the digest of the line before. The digest of the last line names the whole file.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from kifu.errors import AlteredError, StorageError
from kifu.records.crash import crash_point
from kifu.records.files import fsync_folder, make_folder, storing

GENESIS = "0" * 64
"""The ``previous`` of the first line, and the head of an empty file."""


def canonical(value: object) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII, shortest floats that read back equal; no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parsed(text: bytes | str) -> Any:  # noqa: ANN401 - any JSON
    """What JSON text says; the inverse of `canonical`, so NaN and infinities are refused, ``1e999`` among them.

    Raises:
        ValueError: not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as cause:
        raise ValueError("nested too deeply") from cause


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if not isfinite(found := float(text)):
        raise ValueError(f"{text} is beyond the largest number")
    return found


def line_digest(fields: Mapping[str, Any]) -> str:
    """Digest of a line: SHA-256 of its canonical JSON without ``digest``."""
    return hashlib.sha256(canonical({key: value for key, value in fields.items() if key != "digest"})).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What a chained file holds: its whole lines, and how many bytes of an unfinished last line follow them."""

    lines: tuple[dict[str, Any], ...]
    size: int
    """Bytes of the whole lines."""
    torn_bytes: int = 0
    """Bytes after the last whole line: its writer died while writing."""

    @property
    def head(self) -> str:
        """Digest of the last line."""
        return str(self.lines[-1]["digest"]) if self.lines else GENESIS


def read_chain(path: Path, *, expected_head: str | None = None) -> Chain:
    """Read a chained file and verify every link.

    Args:
        path: the file; one that is missing is empty.
        expected_head: a head noted elsewhere (``run.json``, a checkpoint), which the file must still contain.

    Raises:
        AlteredError: a line was changed, dropped or moved, or lines up to ``expected_head`` were cut off.
        StorageError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read: {cause.strerror}; expected a file of JSON lines") from cause
    whole, newline, tail = data.rpartition(b"\n")
    lines: list[dict[str, Any]] = []
    head = GENESIS
    for number, text in enumerate(whole.split(b"\n") if newline else [], start=1):
        fields = _parse(text)
        if fields is None:
            raise AlteredError(f"{path}, line {number}: the line does not match its own digest; restore it from a copy")
        if fields["previous"] != head:
            raise AlteredError(
                f"{path}, line {number}: follows {fields['previous'][:12]}, expected {head[:12]}: "
                "a line was dropped, moved or added; restore the file from a copy"
            )
        head = fields["digest"]
        lines.append(fields)
    if tail and _parse(tail[:-1]) is not None:
        raise AlteredError(f"{path}, line {len(lines) + 1}: its last byte is {tail[-1]:#04x}, expected a line end")
    if expected_head not in (None, GENESIS) and expected_head not in {line["digest"] for line in lines}:
        raise AlteredError(
            f"{path}: ends after {len(lines)} lines at {head[:12]}, but {str(expected_head)[:12]} was noted as its "
            "head: lines were cut off or rewritten; restore it from a copy"
        )
    return Chain(lines=tuple(lines), size=len(data) - len(tail), torn_bytes=len(tail))


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        fields = parsed(text)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("previous"), str):
        return None
    return fields if canonical(fields) == text and fields.get("digest") == line_digest(fields) else None


class ChainedLog:
    """Appends durable lines to a chained file; the only writer of it. An unfinished last line is cut on opening."""

    def __init__(self, path: Path, *, name: str) -> None:
        """Open for appending.

        Args:
            path: the file, created with its folder when missing.
            name: names the file in messages and its crash points ``<name>.before_line``, ``.before_fsync``,
                ``.after_line``.
        """
        make_folder(path.parent)
        chain = read_chain(path)
        self.path = path
        self.head = chain.head
        """Digest of the last line."""
        self._name = name
        with storing(f"the {name} file", path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._handle, chain.size)
            os.fsync(self._handle)
            fsync_folder(path.parent)
        self._size = chain.size

    def append(self, fields: Mapping[str, Any]) -> str:
        """Add one line, durable on return, and give its digest. On a full disk the file stays as it was."""
        if self._handle < 0:
            raise StorageError(f"{self.path}: the {self._name} file is closed")
        line = {**fields, "previous": self.head}
        line["digest"] = line_digest(line)
        data = canonical(line) + b"\n"
        crash_point(f"{self._name}.before_line")
        with storing(f"a line of the {self._name} file", self.path):
            try:
                write_all(self._handle, data)
                crash_point(f"{self._name}.before_fsync")
                os.fsync(self._handle)
            except OSError:
                os.ftruncate(self._handle, self._size)
                raise
        self._size += len(data)
        self.head = line["digest"]
        crash_point(f"{self._name}.after_line")
        return self.head

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write every byte to a file descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
