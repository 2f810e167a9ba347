"""Reading GGUF files. They come from strangers: every length, offset and count is checked before it is used.

The format (versions 2 and 3, little endian): magic, version, number of tensors, number of metadata entries; the
entries; a description of each tensor; padding to the alignment; the tensors' bytes.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kifu.errors import ModelError
from kifu.models.blocks import BLOCKS, dequantize
from kifu.models.weights import Float32s

Numbers = npt.NDArray[np.generic]
Value = str | int | float | bool | Numbers | list["Value"]
T = TypeVar("T", str, int, float, bool)

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LEAST_BYTES = {kind: struct.calcsize(form) for kind, form in _SCALARS.items()} | {_STRING: 8, _ARRAY: 12}
_MAX_NESTING = 4
_MAX_DIMENSIONS = 4
_LEAST_ENTRY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies."""

    name: str
    shape: tuple[int, ...]
    """Slowest axis first, as numpy has it; the file has it reversed."""
    kind: str
    """Name of the block format: ``F32``, ``Q4_1``."""
    begin: int
    """Byte offset from the start of the file."""
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gguf:
    """A checked GGUF file, mapped into memory."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    data: mmap.mmap

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A metadata value of one Python type; integers do as floats, nothing else converts.

        Raises:
            ModelError: the key is absent and there is no default, or the value has another type.
        """
        found = self.metadata.get(key, default)
        if kind is float and type(found) is int:
            found = float(found)
        if found is None or type(found) is not kind:
            what = "absent" if found is None else f"a {type(found).__name__}"
            raise ModelError(f"{self.path}: metadata `{key}` is {what}, expected a {kind.__name__}")
        return found

    def texts(self, key: str) -> list[str]:
        """A metadata value that is a list of strings."""
        found = self.metadata.get(key)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ModelError(f"{self.path}: metadata `{key}` is a {type(found).__name__}, expected a list of strings")
        return [one for one in found if isinstance(one, str)]

    def read(self, name: str) -> Float32s:
        """The values of one tensor; a copy.

        Raises:
            ModelError: values that are not finite.
        """
        tensor = self.tensors[name]
        values = dequantize(tensor.kind, self.data[tensor.begin : tensor.end]).reshape(tensor.shape)
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: tensor {name} holds values that are not finite; the file is damaged")
        return values


def open_gguf(path: Path) -> Gguf:
    """Map a GGUF file and check its whole structure.

    Raises:
        ModelError: not GGUF, a version or tensor type that is not read, or a structure that does not hold.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ModelError(f"{path}: {path.stat().st_size} bytes, a GGUF header alone has 24; truncated?")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(path, data)
    num_tensors, num_entries = _read_preamble(cursor)
    metadata: dict[str, Value] = {}
    for _ in range(num_entries):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise cursor.wrong(f"metadata `{key}` stands twice")
        metadata[key] = cursor.value(cursor.number("<I"), f"metadata `{key}`")
    described = [_read_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.wrong(f"alignment is {alignment!r:.40}, expected a power of two from 8 to {1 << 20}")
    base = -(-cursor.at // alignment) * alignment
    return Gguf(path=path, metadata=metadata, tensors=_placed(cursor, described, (base, alignment)), data=data)


class _Cursor:
    """Reads forward; never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what} (near byte {self.at}); damaged, truncated or not a GGUF file")

    def take(self, size: int, what: str) -> bytes:
        if size > self.size - self.at:
            raise self.wrong(f"{what} needs {size} bytes, {self.size - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        found: int = struct.unpack(form, self.take(struct.calcsize(form), "a number"))[0]
        return found

    def count(self, least_bytes: int, what: str) -> int:
        """A count that the rest of the file has room for."""
        found = self.number("<Q")
        if found > (self.size - self.at) // least_bytes:
            raise self.wrong(f"{what} counts {found} items, only {self.size - self.at} bytes are left")
        return found

    def text(self, what: str) -> str:
        raw = self.take(self.number("<Q"), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as cause:
            raise self.wrong(f"{what} is not UTF-8") from cause

    def value(self, kind: int, what: str, depth: int = 0) -> Value:
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self._array(what, depth + 1)
        if kind not in _SCALARS:
            raise self.wrong(f"{what} has the unknown type {kind}")
        form = _SCALARS[kind]
        found: int | float = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        if kind == _BOOL:
            if found not in (0, 1):
                raise self.wrong(f"{what} is a truth value of {found}")
            return bool(found)
        return found

    def _array(self, what: str, depth: int) -> Value:
        kind = self.number("<I")
        if depth > _MAX_NESTING or kind not in _LEAST_BYTES:
            raise self.wrong(f"{what} is an array of type {kind} at depth {depth}, at most {_MAX_NESTING} are read")
        count = self.count(_LEAST_BYTES[kind], what)
        if kind in _SCALARS:
            form = np.dtype("?" if kind == _BOOL else _SCALARS[kind])
            return np.frombuffer(self.take(count * form.itemsize, what), form)
        return [self.value(kind, what, depth) for _ in range(count)]


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.take(4, "the magic")
    if magic != b"GGUF":
        raise cursor.wrong(f"starts with {magic!r}, expected b'GGUF'")
    version = cursor.number("<I")
    if version not in (2, 3):
        hint = "; it may be big-endian" if version > 0xFFFF else ""
        raise ModelError(f"{cursor.path}: GGUF version {version}{hint}. Versions 2 and 3, little-endian, are read.")
    return cursor.count(_LEAST_TENSOR_BYTES, "the table of tensors"), cursor.count(_LEAST_ENTRY_BYTES, "the metadata")


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """Describe one tensor; ``begin`` is still relative to the data."""
    name = cursor.text("a tensor's name")
    num_axes = cursor.number("<I")
    if not 1 <= num_axes <= _MAX_DIMENSIONS:
        raise cursor.wrong(f"tensor {name!r:.80} has {num_axes} axes, expected 1 to {_MAX_DIMENSIONS}")
    shape = tuple(cursor.number("<Q") for _ in range(num_axes))[::-1]
    kind = cursor.number("<I")
    begin = cursor.number("<Q")
    if kind not in BLOCKS:
        known = ", ".join(block.name for block in BLOCKS.values())
        raise ModelError(
            f"{cursor.path}: tensor {name!r:.80} has type {kind}. Read are: {known}. Convert it elsewhere."
        )
    block = BLOCKS[kind]
    if min(shape) < 1 or shape[-1] % block.values:
        raise cursor.wrong(f"tensor {name!r:.80} of shape {shape} does not divide into {block.name} blocks")
    size = prod(shape) // block.values * block.layout.itemsize
    return GgufTensor(name=name, shape=shape, kind=block.name, begin=begin, end=begin + size)


def _placed(cursor: _Cursor, described: list[GgufTensor], place: tuple[int, int]) -> dict[str, GgufTensor]:
    """Check that tensors are aligned, apart from each other and inside the file; names are unique."""
    base, alignment = place
    found: dict[str, GgufTensor] = {}
    free = 0
    for tensor in sorted(described, key=lambda one: one.begin):
        if tensor.name in found:
            raise cursor.wrong(f"tensor {tensor.name!r:.80} stands twice")
        if tensor.begin % alignment:
            raise cursor.wrong(f"tensor {tensor.name!r:.80} starts at {tensor.begin}, not a multiple of {alignment}")
        if tensor.begin < free:
            raise cursor.wrong(f"tensor {tensor.name!r:.80} overlaps the one before it")
        if base + tensor.end > cursor.size:
            raise cursor.wrong(f"tensor {tensor.name!r:.80} ends at {base + tensor.end} of {cursor.size} bytes")
        free = tensor.end
        found[tensor.name] = GgufTensor(
            name=tensor.name,
            shape=tensor.shape,
            kind=tensor.kind,
            begin=base + tensor.begin,
            end=base + tensor.end,
        )
    return found
