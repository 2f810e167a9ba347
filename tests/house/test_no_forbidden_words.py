"""What must not stand in the tree: unfinished work, this machine's paths, unsafe parsing, swallowed errors."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SOURCES = sorted((TOP / "src").rglob("*.py"))
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "Makefile",
        "pyproject.toml",
        ".ci/*",
        "benchmarks/**/*.*",
        "changelog.d/*.md",
        "docs/**/*.*",
        "recipes/**/*.*",
        "requirements/*",
        "scripts/*",
        "src/**/*.*",
        "tests/**/*.*",
    )
    for path in TOP.glob(pattern)
    if path.is_file() and path.suffix not in {".pyc", ".parquet", ".safetensors", ".png", ".zst", ".bin", ".log"}
)

UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(w[o]rk/(main|shared|steering|\.)|h[o]me/\w|r[o]ot/|U[s]ers/\w|tmp/b[a]sh_)")
UNSAFE_MODULES = frozenset({"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})

ABSTRACT = frozenset({"src/kifu/envs/contract.py"})
"""Files whose methods may raise NotImplementedError: what an author of an environment has to write."""


def unsafe_code(source: str, *, may_be_abstract: bool = False) -> list[str]:
    """Every use of something that executes what it reads, hides a failure or stands for missing work."""
    return [f"line {line}: {what}" for line, what in sorted(_unsafe_nodes(ast.parse(source), may_be_abstract))]


def _unsafe_nodes(tree: ast.Module, may_be_abstract: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, f"import of {name}") for name in _unsafe_imports(node))
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _unsafe_calls(node))
        elif isinstance(node, ast.ExceptHandler) and _is_broad(node) and isinstance(node.body[0], ast.Pass):
            yield node.lineno, "an exception swallowed whole"
        elif isinstance(node, ast.Raise) and _stands_for_missing_work(node) and not may_be_abstract:
            yield node.lineno, "raises NotImplementedError"


def _unsafe_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [module for module in modules if module.split(".")[0] in UNSAFE_MODULES]


def _unsafe_calls(node: ast.Call) -> Iterator[str]:
    match node.func:
        case ast.Name(id="eval" | "exec" as name):
            yield f"call of {name}"
        case ast.Attribute(value=ast.Name(id="torch"), attr="load") if not _is_weights_only(node):
            yield "torch.load without weights_only=True"
    for given in node.keywords:
        if given.arg in ("allow_pickle", "trust_remote_code") and _is_true(given.value):
            yield f"{given.arg}=True"


def _stands_for_missing_work(node: ast.Raise) -> bool:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _is_weights_only(call: ast.Call) -> bool:
    return any(given.arg == "weights_only" and _is_true(given.value) for given in call.keywords)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id.endswith("Exception"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(TOP / "src").as_posix())
def test_source_holds_nothing_unsafe_or_missing(path: Path) -> None:
    name = path.relative_to(TOP).as_posix()
    assert unsafe_code(path.read_text(), may_be_abstract=name in ABSTRACT) == []


def test_no_text_holds_unfinished_work_or_paths_of_one_machine() -> None:
    found = [
        f"{path.relative_to(TOP)}:{number}: {line.strip()[:100]}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if UNFINISHED.search(line) or MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("model.eval()\n", []),
        ("eval('1')\n", ["line 1: call of eval"]),
        ("import pickle\n", ["line 1: import of pickle"]),
        ("from pickle import loads\n", ["line 1: import of pickle"]),
        ("torch.load(path)\n", ["line 1: torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=True)\n", []),
        ("numpy.load(path, allow_pickle=True)\n", ["line 1: allow_pickle=True"]),
        ("try:\n    f()\nexcept Exception:\n    pass\n", ["line 3: an exception swallowed whole"]),
        ("try:\n    f()\nexcept KeyError:\n    pass\n", []),
        ("raise NotImplementedError\n", ["line 1: raises NotImplementedError"]),
        ("raise NotImplementedError('later')\n", ["line 1: raises NotImplementedError"]),
        ("try:\n    f()\nexcept NotImplementedError:\n    g()\n", []),
    ],
)
def test_the_check_of_source_sees_what_it_names(source: str, expected: list[str]) -> None:
    assert unsafe_code(source) == expected


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("# TO" + "DO later", True),
        ("/ho" + "me/someone/runs", True),
        ('open("/ro' + 'ot/x")', True),
        ("src/home/x", False),
        ("the run's root/ folder", False),
    ],
)
def test_the_check_of_texts_sees_what_it_names(line: str, is_found: bool) -> None:
    assert bool(UNFINISHED.search(line) or MACHINE_PATH.search(line)) is is_found
