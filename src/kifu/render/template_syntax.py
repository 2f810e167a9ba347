"""What a chat template may say: an allow-list of its syntax, and counting put into its loops and literals."""

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes

from kifu.render.template_limits import SET_BLOCK, refused

MAX_NODES = 10_000
"""Those of known models have at most 1,400. Compiling takes time and memory in proportion."""
FUNCTIONS = frozenset({"dict", "namespace", "raise_exception", "range", "strftime_now"})
"""Can be called, or asked whether they are defined; they are no values and have no attributes."""
_HIDDEN = frozenset({"caller", "kwargs", "self", "varargs"})
"""What jinja2 keeps in variables; no template we know needs them, and they carry values past what is weighed."""
_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.With, nodes.Scope),
    *(nodes.Assign, nodes.AssignBlock, nodes.Continue, nodes.Break, nodes.Name, nodes.NSRef, nodes.Const),
    *(nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test),
    *(nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
)


def check_syntax(tree: nodes.Template) -> None:
    """Refuse a template that says what no chat template needs.

    Raises:
        TemplateRuntimeError: it has too many parts, or one that is not known to be harmless.
    """
    called: set[int] = set()
    left: list[nodes.Node] = [tree]
    num_nodes = 0
    while left:
        node = left.pop()
        num_nodes += 1
        if num_nodes > MAX_NODES:
            raise refused(f"it has more than {MAX_NODES} parts")
        if type(node) not in _ALLOWED:
            raise refused(f"line {node.lineno}: {type(node).__name__} is not allowed in a chat template")
        if isinstance(node, nodes.Call) or (isinstance(node, nodes.Test) and node.name in ("defined", "undefined")):
            called.add(id(node.node))
        if isinstance(node, nodes.Name) and node.ctx == "load":
            if node.name in _HIDDEN:
                raise refused(f"line {node.lineno}: {node.name} is not allowed in a chat template")
            if node.name in FUNCTIONS and id(node) not in called:
                raise refused(f"line {node.lineno}: {node.name} can only be called in a chat template")
        left += node.iter_child_nodes()


def instrument(tree: nodes.Template) -> None:
    """Count steps in every loop and macro, and weigh what the template makes without a call."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _tick(loop.lineno))
        if loop.test is not None:
            loop.iter = _call("counted", [loop.iter], loop.lineno)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, _tick(macro.lineno))
    for block in tree.find_all(nodes.AssignBlock):
        _weigh_text(block)
    _weigh(tree)


def _weigh_text(block: nodes.AssignBlock) -> None:
    """Weigh what a set block has written before a filter of its own or the rest of the template gets it."""
    first = nodes.Filter(None, SET_BLOCK, [], [], None, None, lineno=block.lineno)
    last = block.filter
    if last is None:
        block.filter = first
        return
    while isinstance(last.node, nodes.Filter):
        last = last.node
    last.node = first


def _weigh(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_weighed(item) for item in value])
        else:
            setattr(node, name, _weighed(value))


def _weighed(item: Any) -> Any:  # noqa: ANN401 - fields of jinja2 nodes are untyped
    if not isinstance(item, nodes.Node):
        return item
    _weigh(item)
    match item:
        case nodes.Concat():
            return _call("joined", item.nodes, item.lineno)
        case nodes.List() | nodes.Dict():
            return _call("made", [item], item.lineno)
        case nodes.Tuple() if item.ctx == "load":
            return _call("made", [item], item.lineno)
        case nodes.Getitem(arg=nodes.Slice()):
            return _call("cut", [item], item.lineno)
        case nodes.Compare() if not _is_brief(item):
            return _call("compared", [item], item.lineno)
        case nodes.TemplateData():  # as an expression it is counted like the others
            return _call("written", [nodes.Const(item.data, lineno=item.lineno)], item.lineno)
        case _:
            return item


def _is_brief(item: nodes.Compare) -> bool:
    """Whether a comparison is over at once: equality with a constant."""
    return all(side.op in ("eq", "ne") and isinstance(side.expr, nodes.Const) for side in item.ops)


def _tick(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call("tick", [], line), lineno=line)


def _call(name: str, args: Sequence[Any], line: int) -> nodes.Call:
    # An attribute of the environment: unlike a variable, a template cannot assign it.
    target = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(target, list(args), [], None, None, lineno=line)
