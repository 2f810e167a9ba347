"""Planted defects are exactly what they are called, and nothing else of a source is touched."""

import ast

import pytest

from kifu.envs.repositories.mutation import KINDS, choose, is_exact, mutated, mutations
from kifu.errors import ArgumentError

SOURCE = '''"""Module."""

import typing

LIMIT = 3


@decorate(1 < 2)
def walk(items: "list[int]", limit: int = 3) -> int:
    """Docstring with 1 < 2."""
    total = 0  # total + 1
    for item in items:
        if item < limit and not item == 2:
            total += item * 2
        elif (item) >= (limit):  # ä ü <
            break
        else:
            note(item, limit)
    assert total + 1 > 0
    return total


class Box:
    size: int = 1 + 2

    def fits(self, other):
        return self.size <= other.size if other else False
'''


def _one(kind: str, before: str) -> str:
    """The line of the source after the only defect of that kind whose place reads ``before``."""
    found = [item for item in mutations(SOURCE, kinds=(kind,)) if item.before == before]
    assert len(found) == 1, found
    assert is_exact(SOURCE, found[0])
    after = mutated(SOURCE, found).split("\n")
    changed = [line for line, old in zip(after, SOURCE.split("\n"), strict=True) if line != old]
    assert len(changed) == 1
    return changed[0].strip()


@pytest.mark.parametrize(
    ("kind", "before", "line"),
    [
        ("compare", "<", "if item <= limit and not item == 2:"),
        ("compare", "==", "if item < limit and not item != 2:"),
        ("compare", ">=", "elif (item) > (limit):  # ä ü <"),
        ("compare", "<=", "return self.size < other.size if other else False"),
        ("boolean", "and", "if item < limit or not item == 2:"),
        ("arithmetic", "*", "total += item // 2"),
        ("condition", "other", "return self.size <= other.size if not (other) else False"),
        ("constant", "False", "return self.size <= other.size if other else True"),
        ("result", "total", "return None"),
        ("statement", "total += item * 2", "pass"),
        ("jump", "break", "continue"),
        ("order", "item, limit", "note(limit, item)"),
    ],
)
def test_a_defect_is_what_its_kind_says(kind: str, before: str, line: str) -> None:
    assert _one(kind, before) == line


def test_numbers_move_by_one_and_never_below_zero() -> None:
    found = [(item.before, item.after) for item in mutations(SOURCE, kinds=("number",))]
    assert found == [("0", "1"), ("2", "1"), ("2", "3"), ("2", "1"), ("2", "3")]


def test_only_bodies_of_functions_are_touched() -> None:
    """No defect lies in decorator, signature, docstring, assertion, or outside of functions."""
    lines = SOURCE.split("\n")
    for item in mutations(SOURCE):
        assert item.function in ("walk", "Box.fits")
        assert "decorate" not in lines[item.line - 1]
        assert "def " not in lines[item.line - 1]
        assert "assert" not in lines[item.line - 1]


def test_every_defect_parses_and_differs() -> None:
    tree = ast.dump(ast.parse(SOURCE))
    found = mutations(SOURCE)
    assert {item.kind for item in found} == set(KINDS)
    for item in found:
        assert is_exact(SOURCE, item), item
        assert ast.dump(ast.parse(mutated(SOURCE, [item]))) != tree


def test_an_edit_that_binds_otherwise_is_not_exact() -> None:
    """``a or b and c`` edited to ``a and b and c`` is one conjunction of three, which nobody meant."""
    source = "def f(a, b, c):\n    return a or b and c\n"
    (item,) = [item for item in mutations(source, kinds=("boolean",)) if item.before == "or"]
    assert not is_exact(source, item)


def test_the_same_seed_chooses_the_same_and_several_defects_lie_in_several_functions() -> None:
    sources = {"a.py": SOURCE, "b.py": SOURCE}
    first = choose(sources, count=3, seed="s")
    assert first is not None
    assert first == choose(dict(reversed(sources.items())), count=3, seed="s")
    assert len({(item.path, item.function) for item in first}) == 3
    assert len({item.kind for item in first}) == 3
    assert {choose(sources, count=1, seed=str(number)) for number in range(20)} != {choose(sources, count=1, seed="0")}
    assert choose(sources, count=5, seed="s") is None


def test_defects_that_meet_or_stand_elsewhere_are_refused() -> None:
    found = mutations(SOURCE, kinds=("statement", "arithmetic"))
    with pytest.raises(ArgumentError, match="two defects meet"):
        mutated(SOURCE, found)
    with pytest.raises(ArgumentError, match="not as it was found"):
        mutated("x" + SOURCE, found[:1])
    with pytest.raises(ArgumentError, match="no kind of mutation `compares`; did you mean `compare`"):
        mutations(SOURCE, kinds=("compares",))


@pytest.mark.parametrize("source", ["def f(:\n", "\0", "", "x = 1\n"])
def test_a_source_without_functions_has_none(source: str) -> None:
    assert mutations(source) == ()
