"""What an environment's code is, by digest: no run is gone on with in another world under the same version."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from kifu.envs.contract import Environment
from kifu.envs.files import LOADED_FROM_FILE

_OWN = __name__.partition(".")[0]
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))


def source_of(environment: type[Environment]) -> dict[str, str]:
    """SHA-256 of every file of a user's environment, by the name of its module.

    The files are those that define the class, its bases and its reward function, and what their modules import, except
    for installed packages. Left out are kifu's own files and Python's, which versions name, and code without a file,
    as of a notebook. A block ``if __name__ == "__main__":`` is no part of a file's digest: it does not run here.

    Args:
        environment: the class.
    """
    defining = [*environment.__mro__, *getattr(environment, "reward", ())]
    waiting = [sys.modules[item.__module__] for item in defining if getattr(item, "__module__", None) in sys.modules]
    found: dict[Path, tuple[str, str]] = {}
    while waiting:
        module = waiting.pop()
        path = _file_of(module)
        if path is None or path in found:
            continue
        source, imported = _read(path, package=module.__package__ or "")
        found[path] = (_name_of(module, path), hashlib.sha256(source).hexdigest())
        if not _is_installed(path):
            waiting += [other for name, other in list(sys.modules.items()) if name in imported and users_file(other)]
    return dict(sorted(found.values()))


def users_file(module: object) -> Path | None:
    """The file of a module that is neither kifu's, nor Python's, nor installed; None for every other."""
    path = _file_of(module) if isinstance(module, ModuleType) else None
    return None if path is None or _is_installed(path) else path


def _name_of(module: ModuleType, path: Path) -> str:
    """The same name for a file that is imported, loaded by its path, or run as a script."""
    return path.stem if module.__name__ == "__main__" else module.__name__.removeprefix(LOADED_FROM_FILE)


def _file_of(module: ModuleType) -> Path | None:
    """The source file of a module that is neither kifu's nor Python's; None where there is none."""
    top, found = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if top == _OWN or (top in sys.stdlib_module_names and top != "__main__") or not isinstance(found, str):
        return None
    path = Path(found).resolve()
    return path if path.suffix == ".py" and path.is_file() else None


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _INSTALLED)


def _read(path: Path, *, package: str) -> tuple[bytes, set[str]]:
    """A file's lines but for those of ``if __name__ == "__main__":``, and the modules they import when loaded."""
    source = path.read_bytes()
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):  # edited since it was loaded: other bytes, whatever they are
        return source, set()
    left_out: set[int] = set()
    imported: set[str] = set()
    for node in body:
        if isinstance(node, ast.If) and _asks_for_main(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        else:
            imported.update(_imports(node, package))
    lines = source.splitlines(keepends=True)
    return b"".join(line for at, line in enumerate(lines, 1) if at not in left_out), imported


def _asks_for_main(node: ast.If) -> bool:
    test = node.test
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and [getattr(item, "value", None) for item in test.comparators] == ["__main__"]
    )


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Names of modules a statement imports, functions left out: those may import later, or never."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        relative = "." * node.level + (node.module or "")
        module = resolve_name(relative, package) if node.level and package else relative
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, package)
