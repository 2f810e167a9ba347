"""Every published version of the weights, as plain arrays: the first whole, later ones as compressed differences.

``weights/versions.jsonl`` has one chained line per version. A file is zstd over raw little-endian tensor bytes,
concatenated in the order of the names; for kind ``xor-zstd`` over the XOR of those bytes with the base version's.
"""

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from kifu.errors import AlteredError, FormatError, StorageError
from kifu.records.chain import ChainedLog, read_chain
from kifu.records.files import file_digest, make_folder, replacing, sweep_temporaries
from kifu.records.schema import FORMAT_VERSION, check_format

VERSIONS = "versions.jsonl"
_CHUNK = 4 << 20
_LEVEL = 1

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Raw: TypeAlias = npt.NDArray[np.uint8]
_Layout: TypeAlias = list[tuple[str, str, tuple[int, ...]]]
"""Name, dtype (``bfloat16`` for bit patterns held as uint16) and shape of each tensor, in order of the names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredWeights:
    """One version as it was put in."""

    version: int
    tensors: Tensors
    bfloat16: frozenset[str] = field(default_factory=frozenset)
    """Names of the tensors whose uint16 values are bfloat16 bit patterns."""
    is_adapter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One line of ``versions.jsonl``."""

    version: int
    digest: str
    """`weights_digest` of the whole version."""
    file: str
    sha256: str
    """Of the file."""
    kind: Literal["full", "xor-zstd", "adapter"]
    base: int | None
    """Version the file is a difference to; None for ``full`` and ``adapter``."""
    raw_bytes: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] | None
    """Layout; None where it is that of the base."""


def weights_digest(tensors: Tensors, bfloat16: Iterable[str] = ()) -> str:
    """SHA-256 over ``name|dtype|d0,d1,...|`` and the raw little-endian bytes of each tensor, in order of the names."""
    found = hashlib.sha256()
    for name, dtype, shape in _layout(tensors, frozenset(bfloat16)):
        found.update(f"{name}|{dtype}|{','.join(map(str, shape))}|".encode())
        found.update(_bytes(tensors[name]))
    return found.hexdigest()


class WeightStore:
    """Keeps versions under a folder. One writer; readers may open it at the same time. Methods are thread-safe."""

    def __init__(self, folder: str | Path, *, expected_head: str | None = None, read_only: bool = False) -> None:
        """Open or create the folder.

        Args:
            folder: usually ``<run>/weights``.
            expected_head: head of ``versions.jsonl`` noted in a checkpoint; it must still be there.
            read_only: never write; for readers while a run is writing.
        """
        self.folder = Path(folder)
        path = self.folder / VERSIONS
        chain = read_chain(path, expected_head=expected_head)
        self._versions = {
            version.version: version
            for version in (_version(line, f"{path}, line {at}") for at, line in enumerate(chain.lines, start=1))
        }
        self._head = chain.head
        self._log: ChainedLog | None = None
        if not read_only:
            make_folder(self.folder)
            sweep_temporaries(self.folder)
            self._log = ChainedLog(path, name="versions")
        self._guard = threading.Lock()
        self._raw: tuple[int, _Raw] | None = None

    @property
    def head(self) -> str:
        """Digest of the last line; note it in every checkpoint."""
        return self._head

    @property
    def versions(self) -> tuple[Version, ...]:
        """What is kept, in order of the versions."""
        return tuple(self._versions[number] for number in sorted(self._versions))

    def put(self, version: int, tensors: Tensors, *, bfloat16: Iterable[str] = (), is_adapter: bool = False) -> str:
        """Keep a version, durable on return, and give its digest. The same version with the same content is kept once.

        Raises:
            StorageError: the version is there with other content, or comes before the last one.
            DiskFullError: nothing changed.
        """
        if self._log is None:
            raise StorageError(f"{self.folder}: opened for reading; open it without read_only to publish")
        names = frozenset(bfloat16)
        digest = weights_digest(tensors, names)
        with self._guard:
            known = self._versions.get(version)
            if known is not None and known.digest == digest:
                return digest
            if known is not None:
                raise StorageError(
                    f"{self.folder}: version {version} is kept with digest {known.digest[:12]}, now {digest[:12]} is "
                    "offered; the step that made it did not come out the same"
                )
            last = max(self._versions, default=-1)
            if version <= last:
                raise StorageError(f"{self.folder}: version {version} after version {last}; publish them in order")
            entry = self._write(version, tensors, digest=digest, bfloat16=names, is_adapter=is_adapter)
            self._append(self._log, entry)
        return digest

    def get(self, version: int) -> StoredWeights:
        """A version as it was put in; going up version by version is cheapest.

        Raises:
            StorageError: it was never kept.
            AlteredError: its bytes do not give its digest.
        """
        with self._guard:
            entry = self._entry(version)
            raw = self._raw_of(version).copy()
        layout, tensors, at = self._layout_of(entry), {}, 0
        for name, dtype, shape in layout:
            kind = np.dtype("<u2" if dtype == "bfloat16" else dtype)
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            array = raw[at : at + size].view(kind).reshape(shape)
            array.flags.writeable = False
            tensors[name] = array
            at += size
        bfloat16 = frozenset(name for name, dtype, _ in layout if dtype == "bfloat16")
        found = weights_digest(tensors, bfloat16)
        if found != entry.digest:
            raise AlteredError(
                f"{self.folder / entry.file}: version {version} has digest {found[:12]}, expected {entry.digest[:12]}; "
                "restore the folder from a copy"
            )
        return StoredWeights(version=version, tensors=tensors, bfloat16=bfloat16, is_adapter=entry.kind == "adapter")

    def altered(self) -> list[str]:
        """Names of files that are missing or not what their line promises; reads compressed bytes only."""
        found = []
        for entry in self.versions:
            path = self.folder / entry.file
            try:
                is_whole = file_digest(path) == entry.sha256
            except OSError:  # missing, or not to be read
                is_whole = False
            if not is_whole:
                found.append(entry.file)
        return found

    def close(self) -> None:
        """Give the file back."""
        if self._log is not None:
            self._log.close()

    def _entry(self, version: int) -> Version:
        if version not in self._versions:
            raise StorageError(
                f"{self.folder}: version {version} is not kept; {len(self._versions)} are, the last one is "
                f"{max(self._versions, default=None)}"
            )
        return self._versions[version]

    def _layout_of(self, entry: Version) -> _Layout:
        while entry.tensors is None:
            assert entry.base is not None
            entry = self._entry(entry.base)
        return list(entry.tensors)

    def _write(
        self, version: int, tensors: Tensors, *, digest: str, bfloat16: frozenset[str], is_adapter: bool
    ) -> Version:
        layout = _layout(tensors, bfloat16)
        last = self._versions[max(self._versions)] if self._versions else None
        same = last is not None and not is_adapter and last.kind != "adapter" and self._layout_of(last) == layout
        base = last.version if same and last is not None else None
        raw = None if base is None else self._raw_of(base)
        size = sum(tensors[name].nbytes for name in tensors)
        file = f"v{version:05d}.{'xor' if same else 'adapter' if is_adapter else 'full'}.zst"
        fresh: _Raw = np.empty(0, np.uint8) if is_adapter else np.empty(size, np.uint8) if raw is None else raw
        self._raw = None  # overwritten below; valid again only when the version is kept
        with replacing(self.folder / file, what=f"weights of version {version}", crash="version") as handle:
            frame = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=size)
            at = 0
            for name, _, _ in layout:
                data = np.frombuffer(_bytes(tensors[name]), np.uint8)
                for start in range(0, data.size, _CHUNK):
                    piece = data[start : start + _CHUNK]
                    handle.write(frame.compress((piece if raw is None else piece ^ raw[at : at + piece.size]).data))
                    if not is_adapter:
                        fresh[at : at + piece.size] = piece
                    at += piece.size
            handle.write(frame.flush())
        if not is_adapter:
            self._raw = (version, fresh)
        return Version(
            version=version,
            digest=digest,
            file=file,
            sha256=file_digest(self.folder / file),
            kind="xor-zstd" if same else "adapter" if is_adapter else "full",
            base=base,
            raw_bytes=size,
            tensors=None if same else tuple(layout),
        )

    def _append(self, log: ChainedLog, entry: Version) -> None:
        self._head = log.append(
            {
                "format": FORMAT_VERSION,
                "version": entry.version,
                "weights": entry.digest,
                "file": entry.file,
                "sha256": entry.sha256,
                "kind": entry.kind,
                "base": entry.base,
                "raw_bytes": entry.raw_bytes,
                "tensors": None
                if entry.tensors is None
                else [[name, dtype, list(shape)] for name, dtype, shape in entry.tensors],
            }
        )
        self._versions[entry.version] = entry

    def _raw_of(self, version: int) -> _Raw:
        """The raw bytes of a version. They are kept for the next call and must not leave this class."""
        chain: list[Version] = []
        entry = self._entry(version)
        while entry.base is not None and (self._raw is None or self._raw[0] != entry.version):
            chain.append(entry)
            entry = self._entry(entry.base)
        held, self._raw = self._raw, None  # invalid while it is changed
        if held is not None and held[0] == entry.version:
            raw = held[1]
        else:
            raw = np.zeros(entry.raw_bytes, np.uint8)
            chain.append(entry)
        for step in reversed(chain):
            self._xor_file(step, raw)
        self._raw = (version, raw)
        return raw

    def _xor_file(self, entry: Version, raw: _Raw) -> None:
        path = self.folder / entry.file
        buffer = bytearray(_CHUNK)
        at = 0
        try:
            with path.open("rb") as handle, zstandard.ZstdDecompressor().stream_reader(handle) as source:
                while count := source.readinto(buffer):
                    raw[at : at + count] ^= np.frombuffer(buffer, np.uint8, count)
                    at += count
        except (OSError, zstandard.ZstdError, ValueError) as cause:
            raise AlteredError(f"{path}: cannot be read as {entry.kind}: {cause}; restore it from a copy") from cause
        if at != entry.raw_bytes:
            raise AlteredError(f"{path}: gives {at} bytes, expected {entry.raw_bytes}; restore it from a copy")


def _layout(tensors: Tensors, bfloat16: frozenset[str]) -> _Layout:
    strangers = bfloat16 - set(tensors)
    if strangers:
        raise StorageError(f"weights: no tensors called {sorted(strangers)[:3]} to be bfloat16")
    found: _Layout = []
    for name in sorted(tensors):
        array = tensors[name]
        if name in bfloat16 and array.dtype != np.uint16:
            raise StorageError(f"weights: `{name}` is {array.dtype}, expected the uint16 bit patterns of bfloat16")
        found.append((name, "bfloat16" if name in bfloat16 else str(array.dtype), array.shape))
    return found


def _bytes(array: npt.NDArray[Any]) -> memoryview | bytes:
    """Raw little-endian bytes in C order."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return plain.reshape(-1).data.cast("B") if plain.size else b""


def _version(line: Mapping[str, Any], where: str) -> Version:
    check_format(line.get("format"), where)
    try:
        layout = line["tensors"]
        return Version(
            version=line["version"],
            digest=line["weights"],
            file=line["file"],
            sha256=line["sha256"],
            kind=line["kind"],
            base=line["base"],
            raw_bytes=line["raw_bytes"],
            tensors=None if layout is None else tuple((name, dtype, tuple(shape)) for name, dtype, shape in layout),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise FormatError(f"{where}: a field is missing or of another type: {cause}") from cause
