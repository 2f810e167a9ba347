"""Safetensors files: written tensor by tensor, hashed without loading.

`safetensors.numpy` needs every tensor in memory at once and cannot read bfloat16; a model of 135 M parameters is
written here with one tensor in memory, and hashed as bytes whatever its dtype.
"""

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kifu.errors import ModelError

Float32s = npt.NDArray[np.float32]
_DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "BOOL": ("bool", 1),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1),
}  # fmt: skip
"""Spelling in the file to (name of the dtype, bytes of one value)."""
_HEADER_LIMIT_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies in a safetensors file."""

    name: str
    file: Path
    dtype: str
    """``float32``, ``bfloat16``."""
    shape: tuple[int, ...]
    begin: int
    """Byte offset from the start of the file."""
    end: int


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Float32s]) -> None:
    """Write float32 tensors in the order of ``shapes``, holding one at a time.

    Args:
        path: the file to create.
        shapes: name and shape of every tensor.
        read: gives the values of a name; called once for each.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = np.ascontiguousarray(read(name), dtype="<f4")
            if values.shape != shape:
                raise ModelError(f"{path}: tensor {name} has shape {values.shape}, its header says {shape}")
            file.write(values.data.cast("B") if values.size else b"")


def stored_tensors(files: Iterable[Path]) -> list[StoredTensor]:
    """List the tensors of one model's safetensors files in the order of their names.

    Raises:
        ModelError: a header that is not safetensors, or a tensor outside its file, overlapping another or named twice.
    """
    found: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in found:
                raise ModelError(f"{file}: tensor {tensor.name} also stands in {found[tensor.name].file.name}")
            found[tensor.name] = tensor
    return [found[name] for name in sorted(found)]


def hash_tensors(tensors: Iterable[StoredTensor]) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor; sharding and file metadata do not count.

    The same tensors as `kifu.policy.Weights` have the same digest.
    """
    digest = hashlib.sha256()
    views: dict[Path, mmap.mmap] = {}
    for tensor in tensors:
        if tensor.file not in views:
            with tensor.file.open("rb") as file:
                views[tensor.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        digest.update(f"{tensor.name}|{tensor.dtype}|{','.join(map(str, tensor.shape))}|".encode())
        with memoryview(views[tensor.file]) as view, view[tensor.begin : tensor.end] as part:
            digest.update(part)
    for mapped in views.values():
        mapped.close()
    return digest.hexdigest()


def _read_header(file: Path) -> list[StoredTensor]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT_BYTES):
            raise ModelError(f"{file}: header of {length} bytes in a file of {size}; truncated, or not safetensors")
        try:
            header = json.loads(opened.read(length))
        except (ValueError, RecursionError) as cause:
            raise ModelError(f"{file}: its header is not JSON ({cause}); not safetensors, or damaged") from cause
    if not isinstance(header, dict):
        raise ModelError(f"{file}: its header is a {type(header).__name__}, expected a table of tensors")
    base = 8 + length
    tensors = [_located(file, name, entry, base=base) for name, entry in header.items() if name != "__metadata__"]
    end = base
    for tensor in sorted(tensors, key=lambda one: (one.begin, one.end)):
        if tensor.begin < end:
            raise ModelError(f"{file}: tensor {tensor.name} overlaps the one before it; the file is damaged")
        end = tensor.end
    if end > size:
        raise ModelError(f"{file}: {size} bytes, its header promises {end}; truncated. Pull or copy it again.")
    return tensors


def _located(file: Path, name: str, entry: object, *, base: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if dtype in _DTYPES:
            kind, width = _DTYPES[dtype]
            whole = all(type(one) is int and one >= 0 for one in shape)
            if whole and 0 <= begin <= end and end - begin == prod(shape) * width:
                return StoredTensor(
                    name=name, file=file, dtype=kind, shape=tuple(shape), begin=base + begin, end=base + end
                )
    known = ", ".join(_DTYPES)
    raise ModelError(f"{file}: tensor {name} is described as {entry!r:.200}; size must fit dtype ({known}) and shape")
