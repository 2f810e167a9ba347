"""A user's Python file as a module, without a place on the path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kifu.errors import UsageError

LOADED_FROM_FILE = "kifu_user_"
"""How the names of such modules begin."""


def load_file(path: Path, *, wanted: str = "environment") -> ModuleType:
    """Execute a file once and return its module.

    Args:
        path: the file.
        wanted: what it is loaded for, for the message.

    Raises:
        UsageError: no such file.
    """
    if not path.is_file():
        raise UsageError(f"{wanted}: no file {path} (looked from {Path.cwd()})")
    name = f"{LOADED_FROM_FILE}{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
