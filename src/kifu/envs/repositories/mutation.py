"""Small defects for Python sources: sites found in the syntax tree, made as edits of the text, nothing else touched.

An edit is used only if the edited text parses to the tree that the change of the tree itself gives: what is planted is
exactly what is named. Only bodies of functions are touched; docstrings, annotations, decorators, assertions and what
stands under ``TYPE_CHECKING`` or ``__main__`` are not.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from kifu.errors import ArgumentError, nearest

_SWAPS: Mapping[type[ast.AST], tuple[type[ast.AST], str, str]] = MappingProxyType(
    {
        ast.Lt: (ast.LtE, "<", "<="),
        ast.LtE: (ast.Lt, "<=", "<"),
        ast.Gt: (ast.GtE, ">", ">="),
        ast.GtE: (ast.Gt, ">=", ">"),
        ast.Eq: (ast.NotEq, "==", "!="),
        ast.NotEq: (ast.Eq, "!=", "=="),
        ast.Is: (ast.IsNot, "is", "is not"),
        ast.In: (ast.NotIn, "in", "not in"),
        ast.Add: (ast.Sub, "+", "-"),
        ast.Sub: (ast.Add, "-", "+"),
        ast.Mult: (ast.FloorDiv, "*", "//"),
        ast.FloorDiv: (ast.Mult, "//", "*"),
        ast.Mod: (ast.FloorDiv, "%", "//"),
        ast.And: (ast.Or, "and", "or"),
        ast.Or: (ast.And, "or", "and"),
    }
)
KINDS = ("compare", "arithmetic", "boolean", "condition", "number", "constant", "result", "statement", "jump", "order")
"""What can go wrong, from the easiest to see to the hardest within a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One defect: bytes ``[start, stop)`` of a source become ``after``."""

    kind: str
    path: str
    line: int
    function: str
    """Dotted name of the function it stands in."""
    start: int
    stop: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class _Site:
    """A change of the tree, as an edit of the text and as an edit of the tree."""

    kind: str
    node: ast.AST
    span: tuple[int, int]
    after: str
    change: Callable[[ast.AST], ast.AST | None]
    """Makes of the node what takes its place; None: the node itself was changed."""


def mutations(source: str, *, path: str = "module.py", kinds: Sequence[str] = KINDS) -> tuple[Mutation, ...]:
    """Every place and defect that comes into question, in the order of the text; `is_exact` tells which hold.

    Args:
        source: a module; one that does not parse has none.
        path: names it.
        kinds: of `KINDS`.

    Raises:
        ArgumentError: a kind nobody knows.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ArgumentError(f"no kind of mutation `{kind}`; {nearest(kind, list(KINDS))}")
    text = _Text(source)
    found = [
        _mutation(site, function, path=path, text=text)
        for function, site in _all_sites(source, text)
        if site.kind in kinds
    ]
    return tuple(sorted(found, key=lambda item: (item.start, item.stop, item.kind, item.after)))


def is_exact(source: str, mutation: Mutation) -> bool:
    """Whether the edited text parses to the tree that is meant."""
    text, place = _Text(source), (mutation.start, mutation.stop)
    try:
        tree, edited = ast.parse(source), ast.parse(mutated(source, [mutation]))
    except (SyntaxError, ValueError, RecursionError):
        return False
    for function, node in _nodes(tree, ()):
        for site in _sites(node, text):
            if site.span == place and _mutation(site, function, path=mutation.path, text=text) == mutation:
                _put(tree, site)
                return ast.dump(edited) == ast.dump(tree)
    return False


def mutated(source: str, chosen: Sequence[Mutation]) -> str:
    """The source with the chosen defects, which must not overlap.

    Raises:
        ArgumentError: they overlap, or the source is not the one they were found in.
    """
    data = source.encode()
    end = len(data)
    for item in sorted(chosen, key=lambda item: item.start, reverse=True):
        if item.stop > end or data[item.start : item.stop] != item.before.encode():
            raise ArgumentError(f"{item.path}, line {item.line}: the place is not as it was found, or two defects meet")
        data = data[: item.start] + item.after.encode() + data[item.stop :]
        end = item.start
    return data.decode()


def choose(
    sources: Mapping[str, str], *, count: int, seed: str, kinds: Sequence[str] = KINDS
) -> tuple[Mutation, ...] | None:
    """``count`` defects in different functions, of different kinds where there are enough; None where there are not.

    Kinds are drawn before places, so that a frequent kind does not crowd out the others.

    Args:
        sources: path to source.
        count: how many.
        seed: equal seeds choose equally.
        kinds: of `KINDS`.
    """
    rng = random.Random(seed)
    left = [item for path in sorted(sources) for item in _known(sources[path], path, tuple(kinds))]
    chosen: list[Mutation] = []
    while len(chosen) < count and left:
        fresh = sorted({item.kind for item in left} - {item.kind for item in chosen})
        kind = rng.choice(fresh or sorted({item.kind for item in left}))
        item = rng.choice([item for item in left if item.kind == kind])
        if not is_exact(sources[item.path], item):
            left.remove(item)
            continue
        chosen.append(item)
        left = [other for other in left if (other.path, other.function) != (item.path, item.function)]
    return tuple(sorted(chosen, key=lambda item: (item.path, item.start))) if len(chosen) == count else None


@lru_cache(maxsize=256)
def _known(source: str, path: str, kinds: tuple[str, ...]) -> tuple[Mutation, ...]:
    return mutations(source, path=path, kinds=kinds)


def _all_sites(source: str, text: "_Text") -> Iterator[tuple[tuple[str, ...], "_Site"]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for function, node in _nodes(tree, ()):
        for site in _sites(node, text):
            yield function, site


def _mutation(site: "_Site", function: tuple[str, ...], *, path: str, text: "_Text") -> Mutation:
    start, stop = site.span
    return Mutation(
        kind=site.kind,
        path=path,
        line=getattr(site.node, "lineno", 0),
        function=".".join(function),
        start=start,
        stop=stop,
        before=text.data[start:stop].decode(),
        after=site.after,
    )


class _Text:
    """A source as bytes, with the places of the syntax tree in it."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends."""
        assert node.end_lineno is not None, "parsed nodes have places"
        assert node.end_col_offset is not None, "parsed nodes have places"
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def operator(self, left: ast.expr, right: ast.expr, word: str) -> tuple[int, int] | None:
        """Where an operator stands between two nodes, comments left out."""
        start, stop = self.span(left)[1], self.span(right)[0]
        between = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.data[start:stop])
        pattern = rb"\s+".join(re.escape(part.encode()) for part in word.split())
        if word.isalpha():
            pattern = rb"\b" + pattern + rb"\b"
        places = list(re.finditer(pattern, between))
        return (start + places[0].start(), start + places[0].end()) if len(places) == 1 else None


def _nodes(tree: ast.AST, name: tuple[str, ...], *, is_body: bool = False) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
    """Nodes that may be changed, each with the name of its function.

    Args:
        tree: whose descendants.
        name: of the function or class it stands in.
        is_body: whether that is a function.
    """
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            block = ast.Module(body=child.body[_has_docstring(child) :], type_ignores=[])
            yield from _nodes(block, (*name, child.name), is_body=True)
        elif isinstance(child, ast.ClassDef):
            yield from _nodes(ast.Module(body=child.body, type_ignores=[]), (*name, child.name))
        elif isinstance(child, ast.AnnAssign):
            if child.value is not None and is_body:
                yield name, child.value
                yield from _nodes(child.value, name, is_body=True)
        elif not _is_left_alone(child):
            if is_body and isinstance(child, ast.expr | ast.stmt):
                yield name, child
            yield from _nodes(child, name, is_body=is_body)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arguments)


def _has_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def _sites(node: ast.AST, text: _Text) -> Iterator[_Site]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield from _swap("compare", node, (left, operator, right), text=text)
        case ast.BinOp(left=left, op=operator, right=right):
            if not isinstance(left, ast.Constant) or not isinstance(left.value, str):
                yield from _swap("arithmetic", node, (left, operator, right), text=text)
        case ast.BoolOp(op=operator, values=[left, right]):
            yield from _swap("boolean", node, (left, operator, right), text=text)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from _negated(test, text)
        case ast.Constant(value=value):
            yield from _constant(node, value, text)
        case ast.stmt():
            yield from _statement(node, text)
        case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred | ast.GeneratorExp):
            yield from _exchanged(node, (first, second), text)
        case _:
            return


def _statement(node: ast.stmt, text: _Text) -> Iterator[_Site]:
    match node:
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield _Site("result", value, text.span(value), "None", lambda _: ast.Constant(value=None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield _Site("statement", node, text.span(node), "pass", lambda _: ast.Pass())
        case ast.Break() | ast.Continue():
            other = ast.Continue if isinstance(node, ast.Break) else ast.Break
            yield _Site("jump", node, text.span(node), other.__name__.lower(), lambda _: other())
        case _:
            return


def _swap(kind: str, node: ast.AST, parts: tuple[ast.expr, ast.AST, ast.expr], *, text: _Text) -> Iterator[_Site]:
    left, operator, right = parts
    swap = _SWAPS.get(type(operator))
    place = None if swap is None else text.operator(left, right, swap[1])
    if swap is None or place is None:
        return
    made = swap[0]

    def change(copied: ast.AST) -> None:
        if isinstance(copied, ast.Compare):
            copied.ops = [made()]  # type: ignore[list-item]  # the table pairs operators of one sort
        else:
            copied.op = made()  # type: ignore[attr-defined]

    yield _Site(kind, node, place, swap[2], change)


def _negated(test: ast.expr, text: _Text) -> Iterator[_Site]:
    start, stop = text.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        yield _Site("condition", test, (start, text.span(inner)[0]), "", lambda copied: copied.operand)  # type: ignore[attr-defined]
        return
    after = f"not ({text.data[start:stop].decode()})"
    yield _Site("condition", test, (start, stop), after, lambda copied: ast.UnaryOp(op=ast.Not(), operand=copied))  # type: ignore[arg-type]


def _constant(node: ast.Constant, value: object, text: _Text) -> Iterator[_Site]:
    if isinstance(value, bool):
        other = not value
        yield _Site("constant", node, text.span(node), str(other), lambda _: ast.Constant(value=other))
    elif isinstance(value, int) and abs(value) < 1_000_000:
        for near in (value + 1, value - 1):
            if near >= 0:
                yield _Site("number", node, text.span(node), str(near), lambda _, near=near: ast.Constant(value=near))  # type: ignore[misc]


def _exchanged(node: ast.Call, pair: tuple[ast.expr, ast.expr], text: _Text) -> Iterator[_Site]:
    first, second = pair
    if isinstance(second, ast.Starred) or ast.dump(first) == ast.dump(second):
        return
    (start, middle), (then, stop) = text.span(first), text.span(second)
    data = text.data
    after = (data[then:stop] + data[middle:then] + data[start:middle]).decode()

    def change(copied: ast.AST) -> None:
        assert isinstance(copied, ast.Call)
        copied.args[0], copied.args[1] = copied.args[1], copied.args[0]

    yield _Site("order", node, (start, stop), after, change)


def _put(tree: ast.AST, site: _Site) -> None:
    """Make the site's change in the tree it was found in."""
    node, fresh = site.node, site.change(site.node)
    if fresh is None:
        return
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node and parent is not fresh:
                setattr(parent, name, fresh)
                return
            if isinstance(value, list) and any(item is node for item in value):
                setattr(parent, name, [fresh if item is node else item for item in value])
                return
