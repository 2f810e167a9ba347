"""The public surface changes on purpose or not at all; `make reference` accepts a change."""

import subprocess
import sys
from pathlib import Path

import pytest

import surface

TOP = Path(__file__).resolve().parents[2]


def _check(what: str) -> str:
    command = [sys.executable, str(TOP / "scripts" / "reference.py"), what, "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_the_public_surface_equals_its_snapshot() -> None:
    assert _check("api") == ""


@pytest.mark.parametrize("page", ["docs", "metrics"])
def test_the_derived_pages_are_up_to_date(page: str) -> None:
    assert _check(page) == ""


def test_every_public_name_is_defined_where_its_room_says() -> None:
    source = surface.Source(TOP / "src")
    missing = [
        f"{room.module}.{name.name}"
        for room in surface.rooms(TOP / "src")
        for name in room.names
        if source.find(room.module, name.name) is None
    ]
    assert missing == []


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = [
        f"{room.module}.{name.name}"
        for room in surface.rooms(TOP / "src")
        for name in room.names
        if not name.summary and ("(" in name.signature.split("=")[0] or name.signature.startswith("class "))
    ]
    assert bare == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with each kind of public name, re-exported, defined in place and deferred."""
    (tmp_path / "kifu" / "room").mkdir(parents=True)
    (tmp_path / "kifu" / "__init__.py").write_text(
        '"""Top."""\n_TABLE = {"Thing": "kifu.room.inner:Thing"}\n__all__ = ["Thing"]\n'
    )
    (tmp_path / "kifu" / "errors.py").write_text(
        'class Oops(Exception):\n    """It broke. Badly."""\n\n\nclass _P: ...\n'
    )
    (tmp_path / "kifu" / "room" / "__init__.py").write_text(
        '"""One room."""\nfrom kifu.room.inner import Thing, act as do\n'
        'LIMIT: int = 3\n__all__ = ["LIMIT", "Thing", "do"]\n'
    )
    (tmp_path / "kifu" / "room" / "inner.py").write_text(
        "class Thing(Base):\n"
        '    """A thing."""\n'
        "    size: int = 0\n"
        '    """Bytes. More."""\n'
        "    _hidden: int = 1\n"
        "    def __init__(self, size: int) -> None: ...\n"
        "    @property\n"
        "    def half(self) -> int: ...\n"
        "    def _private(self): ...\n"
        "async def act(x: int, *, y: str = 'a') -> None:\n"
        '    """Act, e.g. now."""\n'
        "def unlisted(): ...\n"
    )
    return tmp_path


def test_the_surface_is_read_from_the_source(package: Path) -> None:
    found = {room.module: {name.name: name for name in room.names} for room in surface.rooms(package)}

    assert {module: set(names) for module, names in found.items()} == {
        "kifu": {"Thing"},
        "kifu.errors": {"Oops"},
        "kifu.room": {"LIMIT", "Thing", "do"},
    }
    assert found["kifu.errors"]["Oops"].summary == "It broke."
    assert found["kifu.room"]["LIMIT"].signature == "LIMIT: int = 3"
    assert found["kifu.room"]["do"].signature == "async do(x: int, *, y: str='a') -> None"
    assert found["kifu.room"]["do"].summary == "Act, e.g. now."
    for thing in (found["kifu"]["Thing"], found["kifu.room"]["Thing"]):
        assert thing.signature == "class Thing(Base)"
        assert [(member.text, member.summary) for member in thing.members] == [
            ("size: int = 0", "Bytes."),
            ("__init__(self, size: int) -> None", ""),
            ("@property half(self) -> int", ""),
        ]
