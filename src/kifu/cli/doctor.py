"""``kifu doctor``."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, plain, say, size
from kifu.models import cache_root
from kifu.training.experiment.layers import MachineTable
from kifu.training.experiment.machine import resolve_machine, this_cpu

app = Application()
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")


@app.command()
@guarded
def doctor(*, as_json: AsJson = False) -> None:
    """Say what this machine offers and how kifu would use it."""
    found = facts()
    if as_json:
        document(found)
        return
    for name, value in found.items():
        what = name.removesuffix("_bytes").replace("_", " ")
        say(f"{what:<15} {size(value) if name.endswith('_bytes') else plain(value)}")
    for name in _missing(found):
        say(f"{name} is not installed: training needs it, pip install 'kifu[hf]'")


def facts() -> dict[str, Any]:
    """Machine and packages, as JSON."""
    cpu, cache = this_cpu(), cache_root() / "models"
    language = resolve_machine(MachineTable(), small=False)
    return {
        "kifu": version("kifu"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu.name,
        "cores": cpu.cores,
        "fast_bf16": cpu.fast_bf16,
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
        "packages": {name: _version(name) for name in _PACKAGES},
        "language_models": {"dtype": language.sampler_dtype, "threads": language.threads, "device": language.device},
        "model_cache": str(cache),
        "cached_models": sorted(path.parent.name for path in cache.glob("*/config.json")),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _missing(found: dict[str, Any]) -> list[str]:
    return [name for name, installed in found["packages"].items() if installed is None]
