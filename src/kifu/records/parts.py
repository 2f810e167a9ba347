"""Sealed parts of a run: Parquet files, and the manifest lines that promise their bytes."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kifu.errors import AlteredError, FormatError, StorageError
from kifu.records.files import write_atomically
from kifu.records.rows import Row, rows_table, table_rows
from kifu.records.schema import FORMAT_VERSION, check_format

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a manifest line promises about one part."""

    part: str
    """File name, e.g. ``part-00000.parquet``."""
    bytes: int
    sha256: str
    rows: int
    step: int
    """The step at whose end it was sealed."""
    content: str
    """SHA-256 over the content digests of its rows, in order, joined by line ends."""
    format: int = FORMAT_VERSION

    def line(self) -> dict[str, Any]:
        """The fields of its manifest line, without the chain's own."""
        return asdict(self)

    @classmethod
    def of(cls, line: Mapping[str, Any], *, where: str) -> "Part":
        """Read a verified manifest line."""
        check_format(line.get("format"), where)
        try:
            return cls(**{name: line[name] for name in cls.__slots__})
        except KeyError as cause:
            raise FormatError(
                f"{where}: a manifest line without {cause}; it is not a manifest of this format"
            ) from cause


def part_name(number: int) -> str:
    """File name of the part with that number, counting from 0."""
    return f"part-{number:05d}.parquet"


def content_of(digests: Iterable[str]) -> str:
    """Names a sequence of records: SHA-256 over their content digests joined by line ends."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def write_part(folder: Path, rows: Sequence[Row], *, number: int, step: int) -> Part:
    """Write rows as a durable part and give the promise for its manifest line."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows_table(rows), sink, compression="zstd")
    data = memoryview(sink.getvalue())
    name = part_name(number)
    write_atomically(folder / name, [data], what="a part", crash="part")
    return Part(
        part=name,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        rows=len(rows),
        step=step,
        content=content_of(str(row["content_digest"]) for row in rows),
    )


def read_part(folder: Path, part: Part) -> list[Row]:
    """The rows of a part, after its bytes were found to be those the manifest promises.

    Raises:
        AlteredError: the part is missing, or its bytes or rows differ.
    """
    path = folder / part.part
    try:
        data = path.read_bytes()
    except FileNotFoundError as missing:
        raise AlteredError(
            f"{path}: the manifest lists this part, but the file is missing; restore it from a copy"
        ) from missing
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read: {cause.strerror}; expected a part of the record") from cause
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise AlteredError(
            f"{path}: {len(data)} bytes with SHA-256 {found[:12]}, the manifest promises {part.bytes} bytes with "
            f"{part.sha256[:12]}; restore the part from a copy"
        )
    rows = table_rows(_table(pa.BufferReader(data)), where=str(path))
    content = content_of(str(row["content_digest"]) for row in rows)
    if len(rows) != part.rows or content != part.content:
        raise AlteredError(f"{path}: holds {len(rows)} rows of content {content[:12]}, the manifest promises others")
    return rows


def part_ids(path: Path) -> set[str]:
    """Trajectory ids of a file no manifest line promises."""
    try:
        column = _table(pa.BufferReader(path.read_bytes()), columns=["trajectory_id"]).column(0)
    except (pa.ArrowException, OSError) as cause:
        raise AlteredError(f"{path}: not in the manifest and not readable as Parquet: {cause}; move it away") from cause
    return set(column.to_pylist())


def _table(source: pa.BufferReader, columns: list[str] | None = None) -> pa.Table:
    """Parse Parquet on this thread alone: parts are small, and no pool of threads outlives the call."""
    return pq.ParquetFile(source, pre_buffer=False).read(columns=columns, use_threads=False)
