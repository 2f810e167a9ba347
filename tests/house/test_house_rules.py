"""Size limits of the house style, checked on every source file; CONTRIBUTING.md gives the reasons."""

import ast
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FILES = sorted((TOP / "src").rglob("*.py"))
MAX_FILE, MAX_FUNCTION, MAX_POSITIONAL, MAX_FIELDS, MAX_METHODS = 500, 80, 3, 20, 15

EXEMPT: dict[str, str] = {
    "src/kifu/engines/hf/lora.py:forward": "torch passes what an autograd function differentiates by position",
}
"""``path:name`` to the reason. An entry that no limit needs any more fails below."""


def broken_limits(name: str, source: str) -> list[str]:
    """Every limit a file breaks, as ``path:name`` followed by the figure."""
    found = [f"{name}:file has {n} lines"] if (n := source.count("\n")) > MAX_FILE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            positional = [a for a in node.args.posonlyargs + node.args.args if a.arg not in ("self", "cls")]
            if length > MAX_FUNCTION:
                found.append(f"{name}:{node.name} has {length} lines")
            if len(positional) > MAX_POSITIONAL:
                found.append(f"{name}:{node.name} has {len(positional)} positional parameters")
        if isinstance(node, ast.ClassDef):
            fields = sum(isinstance(item, ast.AnnAssign) for item in node.body)
            methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
            if fields > MAX_FIELDS or methods > MAX_METHODS:
                found.append(f"{name}:{node.name} has {fields} fields, {methods} methods")
    return found


def _limits_of(path: Path) -> list[str]:
    return broken_limits(path.relative_to(TOP).as_posix(), path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TOP / "src").as_posix())
def test_file_keeps_the_limits(path: Path) -> None:
    assert [line for line in _limits_of(path) if line.split(" has ")[0] not in EXEMPT] == []


def test_every_exemption_is_still_needed() -> None:
    broken = {line.split(" has ")[0] for path in FILES for line in _limits_of(path)}
    assert set(EXEMPT) <= broken


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\n" * 500, []),
        ("x = 1\n" * 501, ["a.py:file has 501 lines"]),
        ("def f():\n" + "    x = 1\n" * 79, []),
        ("def f():\n" + "    x = 1\n" * 80, ["a.py:f has 81 lines"]),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 92, ["a.py:f has 93 lines"]),
        ("def f(a, b, c, *, d, e): ...\n", []),
        ("def f(a, b, /, c, d): ...\n", ["a.py:f has 4 positional parameters"]),
        ("class A:\n    def f(self, a, b, c): ...\n", []),
        ("class A:\n" + "".join(f"    x{n}: int\n" for n in range(20)), []),
        ("class A:\n" + "".join(f"    x{n}: int\n" for n in range(21)), ["a.py:A has 21 fields, 0 methods"]),
        ("class A:\n" + "".join(f"    def f{n}(self): ...\n" for n in range(16)), ["a.py:A has 0 fields, 16 methods"]),
    ],
)
def test_limits_hold_up_to_their_figure_and_not_beyond(source: str, expected: list[str]) -> None:
    assert broken_limits("a.py", source) == expected
