"""A user's code: a module on the path, or a file without a place on it."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kifu.errors import UsageError

LOADED_FROM_FILE = "kifu_user_"
"""How the names of such modules begin."""


def load_file(path: Path, *, wanted: str = "environment") -> ModuleType:
    """Execute a file once and return its module; like a script, it finds the modules beside it, behind all others.

    Args:
        path: the file.
        wanted: what it is loaded for, for the message.

    Raises:
        UsageError: no such file, or executing it raises.
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
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _unloadable(str(path), wanted, error) from error
    return module


def load_module(source: str, *, wanted: str = "environment") -> ModuleType:
    """Import ``package.module``, or load ``path/to/file.py``.

    Args:
        source: either.
        wanted: what it is loaded for, for the message.

    Raises:
        UsageError: it does not exist, or executing it raises.
    """
    if source.endswith(".py"):
        return load_file(Path(source), wanted=wanted)
    if not all(part.isidentifier() for part in source.split(".")):
        raise UsageError(
            f"{wanted}: `{source}` is neither a module nor a file; expected `package.module` or `path/to/file.py`"
        )
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is not None and (source == error.name or source.startswith(f"{error.name}.")):
            raise UsageError(
                f"{wanted}: no module `{source}` on the path; install it, name its file: `path/to/file.py`, or put "
                f"PYTHONPATH=FOLDER in front of the command, the folder that holds `{source.partition('.')[0]}`"
            ) from error
        raise _unloadable(source, wanted, error) from error
    except (Exception, SystemExit) as error:
        raise _unloadable(source, wanted, error) from error


def _unloadable(source: str, wanted: str, error: BaseException) -> UsageError:
    return UsageError(f"{wanted}: loading `{source}` raised {type(error).__name__}: {error}; mend it or name another")
