"""What the code imports, what pyproject.toml asks for and what requirements/ pins agree."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
OWN = {"kifu", *(path.stem for folder in ("scripts", "benchmarks") for path in (TOP / folder).glob("*.py"))}


def normal(name: str) -> str:
    """Name of a distribution as registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=~!;\[ ]", name)[0]).lower()


def asked(*, tests: bool) -> set[str]:
    """Distributions that pyproject.toml names for the library with its extras, or for the tests too."""
    project = PROJECT["project"]
    items = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    if tests:
        items += [item for group in PROJECT["dependency-groups"].values() for item in group if isinstance(item, str)]
    return {normal(item) for item in items}


def pinned(*files: str) -> set[str]:
    """Distributions pinned to one version in files of requirements/."""
    lines = [line for file in files for line in (TOP / "requirements" / file).read_text().splitlines()]
    return {normal(line) for line in lines if "==" in line and not line.startswith("#")}


def foreign_imports(paths: Iterable[Path]) -> dict[str, Path]:
    """Third-party top-level modules, each with one file that imports it."""
    found: dict[str, Path] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            found.update({module.split(".")[0]: path for module in modules})
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name not in OWN}


def undeclared(imports: dict[str, Path], names: set[str]) -> list[str]:
    """Imported modules of which no distribution is among ``names``."""
    known = packages_distributions()
    return [
        f"{module}, imported by {path.relative_to(TOP)}"
        for module, path in sorted(imports.items())
        if not {normal(name) for name in known.get(module, [module])} & names
    ]


def test_the_library_declares_what_it_imports() -> None:
    assert undeclared(foreign_imports((TOP / "src").rglob("*.py")), asked(tests=False)) == []


def test_the_tests_declare_what_they_import() -> None:
    places = [path for folder in ("tests", "scripts", "benchmarks") for path in (TOP / folder).rglob("*.py")]
    assert undeclared(foreign_imports(places), asked(tests=True)) == []


def test_everything_the_library_asks_for_is_pinned_for_training() -> None:
    assert asked(tests=False) - pinned("torch.txt", "run.txt") == set()


def test_everything_the_tests_ask_for_is_pinned() -> None:
    assert asked(tests=True) - pinned("torch.txt", "run.txt", "dev.txt") == set()


def test_torch_is_pinned_in_its_own_file_only() -> None:
    assert pinned("torch.txt") == {"torch"}
    assert "torch" not in pinned("run.txt", "dev.txt")


def test_a_module_nobody_asked_for_is_found(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("import os\nimport numpy.linalg\nfrom yaml import load\nfrom kifu.errors import KifuError\n")
    imports = foreign_imports([source])
    assert set(imports) == {"numpy", "yaml"}
    assert [line.split(",")[0] for line in undeclared({"yaml": TOP / "Makefile"}, {"numpy"})] == ["yaml"]
    assert undeclared({"yaml": TOP / "Makefile"}, {"pyyaml"}) == []
