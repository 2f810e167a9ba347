"""The public surface of kifu, read from the source without importing it.

A room's public names are its ``__all__``; a module directly under ``kifu`` without one shows every name that has no
leading underscore. Reading the source keeps annotations as their authors wrote them, on every version of Python, and
needs none of the optional packages.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "kifu"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A field, enum value or public method of a class."""

    text: str
    """As written, without its body."""
    summary: str
    """First sentence of its documentation; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicName:
    """One name a room shows."""

    name: str
    signature: str
    """How it is called, or what it stands for."""
    members: tuple[Member, ...]
    """Of a class: fields and enum values, then methods, each in order of definition."""
    summary: str
    """First sentence of its docstring; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A public package or module."""

    module: str
    summary: str
    names: tuple[PublicName, ...]


class Source:
    """Parsed modules of one package, looked up by dotted name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module] = {}

    def path(self, module: str) -> Path | None:
        """File of a module; None when there is none."""
        base = self._root.joinpath(*module.split("."))
        return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)

    def tree(self, module: str) -> ast.Module:
        """Syntax tree of a module."""
        if module not in self._trees:
            path = self.path(module)
            if path is None:
                raise LookupError(f"no module {module} under {self._root}")
            self._trees[module] = ast.parse(path.read_text())
        return self._trees[module]

    def find(self, module: str, name: str) -> Definition | None:
        """Definition of ``name`` as seen from ``module``, followed through re-exports; None for a foreign name."""
        if self.path(module) is None:
            return None
        overloaded: Definition | None = None
        for node in _statements(self.tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(node.module, alias.name)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                overloaded = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                return node
        return overloaded or self._find_deferred(module, name)

    def _find_deferred(self, module: str, name: str) -> Definition | None:
        """Follow a table of strings such as ``{"Task": "kifu.envs:Task"}``, as a deferred import uses it."""
        for node in ast.walk(self.tree(module)):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if _text(key) == name and (target := _text(value)).startswith(f"{PACKAGE}."):
                    origin, _, attribute = target.partition(":")
                    return self.find(origin, attribute or name)
        return None


def rooms(root: Path) -> Iterator[Room]:
    """Every room of the package under ``root``, sorted by name; private and empty ones are left out."""
    source = Source(root)
    top = root / PACKAGE
    modules = {_dotted(path.parent, root) for path in top.rglob("__init__.py")}
    modules |= {_dotted(path.with_suffix(""), root) for path in top.glob("*.py") if not path.name.startswith("__")}
    for module in sorted(modules):
        if any(part.startswith("_") for part in module.split(".")):
            continue
        tree = source.tree(module)
        shown = public_names(tree, is_top=module.count(".") == 1)
        if shown:
            names = tuple(_describe(name, source.find(module, name)) for name in shown)
            yield Room(module=module, summary=_summary(ast.get_docstring(tree)), names=names)


def public_names(tree: ast.Module, *, is_top: bool) -> list[str]:
    """Names in ``__all__``; without one, every name defined in a module directly under the package."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in _targets(node):
            value = node.value
            return [] if value is None else sorted(_text(item) for item in ast.walk(value) if _text(item))
    defined = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted(node.name for node in defined if not node.name.startswith("_")) if is_top else []


def _describe(name: str, node: Definition | None) -> PublicName:
    if node is None:
        return PublicName(name=name, signature=name, members=(), summary="")
    if isinstance(node, ast.ClassDef):
        members = tuple(_members(node))
        return PublicName(name=name, signature=_class(name, node), members=members, summary=_doc(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return PublicName(name=name, signature=_function(name, node), members=(), summary=_doc(node))
    annotation = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    value = "" if node.value is None else ast.unparse(node.value)
    shown = f" = {value}" if value and len(value) <= 100 else ""
    return PublicName(name=name, signature=f"{name}{annotation}{shown}", members=(), summary="")


def _class(name: str, node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {name}({bases})" if bases else f"class {name}"


def _function(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{word}{name}({ast.unparse(node.args)}){returns}"


def _members(node: ast.ClassDef) -> Iterator[Member]:
    """Fields, then methods; a constructor and ``__call__`` count, other private names do not."""
    for item, following in zip(node.body, [*node.body[1:], None], strict=True):
        if any(not name.startswith("_") for name in _targets(item)):
            documented = _text(following.value) if isinstance(following, ast.Expr) else ""
            yield Member(text=ast.unparse(item), summary=_summary(documented))
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            if item.name.startswith("_") and item.name not in ("__init__", "__call__"):
                continue
            marks = [ast.unparse(mark) for mark in item.decorator_list]
            if any(mark.endswith((".setter", "overload")) for mark in marks):
                continue
            kept = "".join(f"@{mark} " for mark in marks if mark in ("property", "classmethod", "staticmethod"))
            yield Member(text=kept + _function(item.name, item), summary=_doc(item))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Top-level statements, those inside a top-level ``if`` (TYPE_CHECKING) or ``try`` included."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from node.body


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return _summary(ast.get_docstring(node))


def _summary(docstring: str | None) -> str:
    """First sentence: up to a full stop that ends the paragraph or stands before a capital letter."""
    paragraph = " ".join((docstring or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0]


def _dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).parts)
