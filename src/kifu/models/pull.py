"""From a name to a model folder."""

import os
from pathlib import Path

import platformdirs

from kifu.errors import ModelError, nearest
from kifu.models.folder import ModelFolder, open_folder
from kifu.models.tiny import tiny_llama

NAMES = ("smollm2-135m", "tiny")


def cache_root() -> Path:
    """Where models are kept: ``KIFU_CACHE`` where set, else the user's cache folder."""
    chosen = os.environ.get("KIFU_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("kifu")


def pull(name_or_path: str | Path, *, cache: Path | None = None) -> ModelFolder:
    """Get a model folder."""
    models = (cache or cache_root()) / "models"
    if name_or_path == "tiny":
        return tiny_llama(models / "tiny")
    if Path(name_or_path).is_dir():
        return open_folder(Path(name_or_path))
    raise ModelError(f"no model `{name_or_path}`; {nearest(str(name_or_path), list(NAMES))}")
