"""Tests that must fail: copies of a repository's own tests in which the expected values are others of the same type.

A solution that makes everything equal, passes every report or skips every test passes these too, and is found by it.
"""

import ast
import hashlib
from collections.abc import Mapping

_EQUAL = (
    "assertEqual",
    "assertEquals",
    "assertListEqual",
    "assertDictEqual",
    "assertTupleEqual",
    "assertSequenceEqual",
)
_OTHER = "_other_value"
_PREAMBLE = f"""
def {_OTHER}(value):
    kind = type(value)
    if kind is bool:
        return not value
    if kind in (int, float, complex):
        return value + 3
    if kind in (str, bytes):
        return value + (b"~" if kind is bytes else "~")
    if kind in (list, tuple):
        return kind([*value[:-1], {_OTHER}(value[-1])] if value else ["~"])
    if kind in (set, frozenset):
        return kind([*value, "~"])
    if kind is dict:
        return {{name: {_OTHER}(item) for name, item in value.items()}} or {{"~": "~"}}
    return object()
"""


def canary_copy(source: str, *, mark: str = "") -> tuple[str, tuple[str, ...]] | None:
    r"""A test module whose equalities cannot hold, and the ids (without file) of its tests that must fail.

    Only tests outside of parametrization, at the top or in a class, whose first assertion compares for equality. None
    where there is no such test. Their docstrings go, since some runners print them instead of names.

    Args:
        source: the module.
        mark: put behind the names of the tests, for runners that do not say which file a test is in.

    >>> text, names = canary_copy("def test_a():\n    assert 1 + 1 == 2\n") or ("", ())
    >>> names
    ('test_a',)
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names: list[str] = []
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or _is_test_case(node)):
            found = [item.name for item in node.body if isinstance(item, ast.FunctionDef) and _spoil(item, mark)]
            names += [f"{node.name}::{name}" for name in found]
            node.body = [item for item in node.body if not _is_test(item) or getattr(item, "name", "") in found]
            node.body = node.body or [ast.Pass()]
            kept.append(node)
        elif not _is_test(node):
            kept.append(node)
        elif _spoil(node, mark):
            assert isinstance(node, ast.FunctionDef)
            names.append(node.name)
            kept.append(node)
    if not names:
        return None
    tree.body = kept
    after = next((at for at, node in enumerate(tree.body) if not _stays_first(node)), len(tree.body))
    tree.body[after:after] = ast.parse(_PREAMBLE).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", tuple(names)


def canary_modules(
    tests: Mapping[str, bytes], *, secret: bytes, most: int = 4, mark: str = ""
) -> tuple[dict[str, bytes], list[str]]:
    """Canary modules beside their originals, under names that look like others, and the ids that must fail.

    Args:
        tests: path to source of the test files.
        secret: the names follow from it.
        most: modules to make.
        mark: as for `canary_copy`.
    """
    made: dict[str, bytes] = {}
    ids: list[str] = []
    for path in sorted(tests):
        name = path.rpartition("/")[2]
        copied = canary_copy(tests[path].decode("utf-8", "replace"), mark=mark) if name.startswith("test") else None
        if copied is None or len(made) >= most:
            continue
        other = hashlib.sha256(secret + path.encode()).hexdigest()[:8]
        fresh = f"{path.rpartition('/')[0]}/test_{other}.py".lstrip("/")
        made[fresh] = copied[0].encode()
        ids += [f"{fresh}::{test}" for test in copied[1]]
    return made, ids


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _is_test_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def _stays_first(node: ast.stmt) -> bool:
    is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_doc or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _spoil(node: ast.stmt, mark: str) -> bool:
    """Replace what the first assertion of a test expects; whether that could be done."""
    if not isinstance(node, ast.FunctionDef) or not _is_test(node) or node.decorator_list:
        return False
    for at, statement in enumerate(node.body):
        match statement:
            case ast.Assert(test=ast.Compare(ops=[ast.Eq()]) as compared):
                if _is_literal(compared.left) and not _is_literal(compared.comparators[0]):
                    compared.left = _other(compared.left)
                else:
                    compared.comparators = [_other(compared.comparators[0])]
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[_, _, *_] as arguments)) if (
                name in _EQUAL
            ):
                at_literal = 0 if _is_literal(arguments[0]) and not _is_literal(arguments[1]) else 1
                arguments[at_literal] = _other(arguments[at_literal])
                statement.value.func.attr = "assertEqual"  # type: ignore[attr-defined]
            case ast.Expr(value=ast.Call(func=ast.Name(id="assert_equal"), args=[_, _, *_] as arguments)):
                arguments[1] = _other(arguments[1])
            case ast.Assign() | ast.AnnAssign() | ast.Expr(value=ast.Constant()):
                continue
            case _:
                return False
        del node.body[at + 1 :]
        if ast.get_docstring(node) is not None:
            del node.body[0]
        node.name += f"_{mark}" if mark else ""
        return True
    return False


def _other(expected: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id=_OTHER, ctx=ast.Load()), args=[expected], keywords=[])


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
