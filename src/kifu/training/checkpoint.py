"""Checkpoints: nested trainer state as safetensors and JSON, written beside, made durable, then renamed into place."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from kifu.errors import AlteredError, DiskFullError, FormatError
from kifu.records.chain import GENESIS, canonical, parsed
from kifu.records.crash import crash_point
from kifu.records.files import file_digest

FORMAT = 1
_KINDS = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
    "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL",
}  # fmt: skip
"""numpy's little-endian kinds to those of safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where in the run a checkpoint stands."""

    step: int
    """Steps closed before it: the next step to train."""
    version: int
    """Policy version published last."""
    weights_digest: str
    manifest_head: str
    """Digest of the last manifest line, so that a cut tail is found."""
    plan_head: str
    """Digest of the last plan line."""
    stalled: int
    """Steps in a row without an informative group."""
    ledger: Mapping[str, Any]
    """The next step's, opened."""
    effects_seal: str = GENESIS
    """Seal of the last line of the log of effects, where the run keeps one."""


def save_checkpoint(folder: Path, mark: Mark, state: Mapping[str, Any]) -> Path:
    """Write ``step-NNNNN`` atomically and drop all but the newest two.

    Raises:
        DiskFullError: the older checkpoints are untouched.
    """
    target = folder / f"step-{mark.step:05d}"
    work = folder / f".step-{mark.step:05d}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    arrays: dict[str, np.ndarray] = {}
    tree = _flatten(state, "", arrays)
    try:
        work.mkdir(parents=True)
        _write_arrays(work / "state.safetensors", arrays)
        table = {"format": FORMAT, **asdict(mark), "tree": tree, "state": file_digest(work / "state.safetensors")}
        (work / "mark.json").write_text(json.dumps({**table, "digest": _digest(table)}))
        for name in ("state.safetensors", "mark.json"):
            _sync(work / name)
    except OSError as cause:
        shutil.rmtree(work, ignore_errors=True)
        raise DiskFullError(
            f"{target}: cannot write the checkpoint: {cause}. Free space and `kifu resume`; nothing accepted is lost."
        ) from cause
    crash_point("checkpoint.before_rename")
    if target.exists():
        _drop(target)
    work.rename(target)
    _sync(folder)
    crash_point("checkpoint.after_rename")
    for old in list_checkpoints(folder)[:-2]:
        _drop(old)
    return target


def _drop(path: Path) -> None:
    """Remove a checkpoint as it came: whole, so that one without a mark was never left by a crash."""
    for stale in path.parent.glob(".step-*.old"):
        shutil.rmtree(stale)
    shutil.rmtree(path.rename(path.with_name(f".{path.name}.old")))


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "mark.json").is_file())


def read_mark(path: Path) -> Mark:
    """Where in the run a checkpoint stands, without its state.

    Raises:
        AlteredError: the mark is not what `save_checkpoint` wrote.
    """
    try:
        table = parsed((path / "mark.json").read_text())
        if table.pop("digest") != _digest(table):
            raise ValueError("its bytes differ from what was written")
        return Mark(**{name: item for name, item in table.items() if name not in ("format", "tree", "state")})
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise AlteredError(f"{path}: not a checkpoint as it was written ({cause})") from cause


def load_checkpoint(path: Path) -> tuple[Mark, dict[str, Any]]:
    """Read one checkpoint back.

    Raises:
        AlteredError: the files do not hold what `save_checkpoint` wrote.
        FormatError: written by a newer kifu.
    """
    try:
        table = parsed((path / "mark.json").read_text())
        found = table["format"]
        if found > FORMAT:
            raise FormatError(f"{path}: checkpoint format {found}, this kifu reads up to {FORMAT}. Upgrade kifu.")
        promised = table.pop("digest")
        if _digest(table) != promised or file_digest(path / "state.safetensors") != table.pop("state"):
            raise ValueError("its bytes differ from what was written")
        del table["format"]
        tree, arrays = table.pop("tree"), load_file(path / "state.safetensors")
        return Mark(**table), _restore(tree, arrays)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as cause:
        raise AlteredError(
            f"{path}: not a checkpoint as it was written ({cause}). Delete this folder and `kifu resume` goes on "
            "from the one before."
        ) from cause


def _write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """A safetensors file written array by array: the library's own writer holds a second copy of everything."""
    header, offset = {}, 0
    for name, array in arrays.items():
        kind = _KINDS[array.dtype.str.lstrip("<|")]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            file.write(array.reshape(-1).view(np.uint8).data)


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(table)).hexdigest()


def _flatten(value: object, path: str, arrays: dict[str, np.ndarray]) -> object:
    """JSON tree with arrays replaced by their names."""
    if isinstance(value, np.ndarray):
        # safetensors keeps no 0-d arrays apart; numpy scalars travel as 1-element arrays with a flag
        arrays[path] = np.ascontiguousarray(value).reshape(-1) if value.ndim == 0 else np.ascontiguousarray(value)
        return {"array": path, "scalar": value.ndim == 0}
    if isinstance(value, Mapping):
        return {"map": {str(key): _flatten(item, f"{path}/{key}", arrays) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"list": [_flatten(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    return {"value": value}


def _restore(tree: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:  # noqa: ANN401 (a state tree)
    if "array" in tree:
        array = arrays[tree["array"]]
        return array.reshape(()) if tree["scalar"] else array
    if "map" in tree:
        return {key: _restore(item, arrays) for key, item in tree["map"].items()}
    if "list" in tree:
        return [_restore(item, arrays) for item in tree["list"]]
    return tree["value"]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
