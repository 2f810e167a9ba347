"""Which room reaches what: in the graph of imports, and in a fresh interpreter.

The layers of rooms are a contract of import-linter in pyproject.toml; here stand the rules that must hold for whatever
rooms there are.
"""

import ast
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grimp
import pytest

TOP = Path(__file__).resolve().parents[2]
PACKAGE = TOP / "src" / "kifu"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file())

HEAVY = ("torch", "transformers", "peft", "ray", "vllm")
MAY_REACH_HEAVY = frozenset({"objectives", "batching", "engines", "algorithms", "training", "testing", "lab", "cli"})
"""`cli` stands above `training` and reaches torch through it, never by itself; see below."""
LIGHT_BY_RUNTIME = frozenset({"engines", "batching", "lab"})
"""Rooms that may reach torch in some module, but whose own ``__init__`` must not load it."""

DEFERRED = {
    "__init__.py": "the top package loads a room when one of its names is asked for",
    "cli/commands.py": "a command is loaded when it runs, so that reading a run needs no torch",
    "gateway/listening.py": "a server and its packages, which are an extra, are loaded when an agent outside is run",
    "engines/__init__.py": "engines are named by strings, so that a reader of records loads none",
}
"""The only files that import own code by a string."""

SHARED_NAMES = frozenset({"contract", "contracts", "composition", "registry"})
"""Modules of a room of siblings that all siblings may import."""
ROOMS_OF_SIBLINGS = ("algorithms", "engines", "envs.suites", "envs.adapters")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kifu", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in MAY_REACH_HEAVY])
def test_room_reaches_no_heavy_package(graph: grimp.ImportGraph, room: str) -> None:
    chains = [graph.find_shortest_chain(f"kifu.{room}", heavy, as_packages=True) for heavy in _present(graph, HEAVY)]
    assert [" -> ".join(chain) for chain in chains if chain] == []


def test_the_command_line_imports_no_heavy_package_itself(graph: grimp.ImportGraph) -> None:
    modules = [module for module in graph.modules if module.split(".")[:2] == ["kifu", "cli"]]
    reached = {module: graph.find_modules_directly_imported_by(module) & set(HEAVY) for module in modules}
    assert {module: heavy for module, heavy in reached.items() if heavy} == {}


@pytest.mark.parametrize("parent", ROOMS_OF_SIBLINGS)
def test_siblings_are_independent(graph: grimp.ImportGraph, parent: str) -> None:
    """What they share sits in a lower room, or in the room's contract."""
    assert dependent_siblings(graph, f"kifu.{parent}") == []


def dependent_siblings(graph: grimp.ImportGraph, parent: str) -> list[str]:
    """Chains between two siblings, neither of which is private or one of the shared modules."""
    if parent not in graph.modules:
        return []
    children = [child for child in sorted(graph.find_children(parent)) if _stands_alone(child)]
    pairs = itertools.permutations(children, 2)
    chains = (graph.find_shortest_chain(one, other, as_packages=True) for one, other in pairs)
    return [" -> ".join(chain) for chain in chains if chain]


def _stands_alone(module: str) -> bool:
    name = module.rsplit(".", 1)[1]
    return not name.startswith("_") and name not in SHARED_NAMES


def _present(graph: grimp.ImportGraph, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in graph.modules]


def test_dependent_siblings_are_found() -> None:
    graph = grimp.ImportGraph()
    for module in ("a", "a.one", "a.two", "a.three", "a.contract", "low"):
        graph.add_module(module)
    for importer, imported in (("a", "a.one"), ("a.one", "a.contract"), ("a.two", "low"), ("a.three", "a.two")):
        graph.add_import(importer=importer, imported=imported)

    assert dependent_siblings(graph, "a") == ["a.three -> a.two"]


def forbidden_imports(source: str, *, may_defer: bool) -> list[str]:
    """Imports of the top package, imports of own code inside functions or by a string."""
    found = []
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            is_plain = isinstance(node, ast.Import)
            modules = [alias.name for alias in node.names] if is_plain else [getattr(node, "module", None) or ""]
            own = [module for module in modules if module.split(".")[0] == "kifu"]
            if "kifu" in own or (is_plain and own):
                found.append(f"line {node.lineno}: imports the top package")
            if own and id(node) in inside:
                found.append(f"line {node.lineno}: imports {own[0]} inside a function")
        elif isinstance(node, ast.Constant) and not may_defer and _names_own_code(node.value):
            found.append(f"line {node.lineno}: names own code by the string {node.value!r}")
    return found


def _names_own_code(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith("kifu."):
        return False
    module, colon, name = value.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split(".")) and name.isidentifier()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_file_imports_own_code_at_the_top_and_by_room(path: Path) -> None:
    may_defer = path.relative_to(PACKAGE).as_posix() in DEFERRED
    assert forbidden_imports(path.read_text(), may_defer=may_defer) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from kifu.records import Span\n", []),
        ("import numpy as np\n", []),
        ("import kifu\n", ["line 1: imports the top package"]),
        ("import kifu.records\n", ["line 1: imports the top package"]),
        ("from kifu import records\n", ["line 1: imports the top package"]),
        ("def f():\n    from kifu.records import Span\n", ["line 2: imports kifu.records inside a function"]),
        ("x = 'kifu.engines.hf:build'\n", ["line 1: names own code by the string 'kifu.engines.hf:build'"]),
        ("x = 'see kifu.engines: build'\n", []),
    ],
)
def test_the_check_of_imports_sees_what_it_names(source: str, expected: list[str]) -> None:
    assert forbidden_imports(source, may_defer=False) == expected


def _loaded_by(*modules: str, blocked: Sequence[str] = ()) -> tuple[frozenset[str], float]:
    """Top-level modules loaded by importing ``modules`` in a fresh interpreter, and the CPU seconds it took."""
    program = (
        f"import sys, json, time\nsys.modules.update(dict.fromkeys({list(blocked)!r}))\nstart = time.process_time()\n"
        + "\n".join(f"import {module}" for module in modules)
        + "\ntook = time.process_time() - start\n"
        "loaded = sorted({name.split('.')[0] for name, module in sys.modules.items() if module is not None})\n"
        "print(json.dumps([loaded, took]))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, took = json.loads(done.stdout)
    return frozenset(loaded), float(took)


def test_importing_the_light_rooms_loads_no_heavy_package() -> None:
    light = [room for room in ROOMS if room not in MAY_REACH_HEAVY or room in LIGHT_BY_RUNTIME]
    loaded, _ = _loaded_by("kifu", *(f"kifu.{room}" for room in light))
    assert loaded & {*HEAVY, "datasets", "scipy", "pandas", "tensorboard", "hypothesis", "pytest"} == set()


def test_a_reader_of_records_starts_within_its_budget() -> None:
    """Half a second of CPU is the budget; the best of three, with a margin of two for a busy or slow machine."""
    rooms = [f"kifu.{room}" for room in ("records", "envs", "dashboard") if room in ROOMS]
    assert min(_loaded_by(*rooms)[1] for _ in range(3)) < 1.0


def test_the_numerical_practice_needs_numpy_alone() -> None:
    others = ("torch", "pyarrow", "pydantic", "rich", "typer", "tokenizers", "safetensors", "jinja2", "fsspec", "anyio")
    loaded, _ = _loaded_by("kifu.lab", blocked=others)
    assert "numpy" in loaded
