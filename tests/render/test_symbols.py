"""Symbols as tokens."""

import numpy as np
import pytest

from kifu.errors import RenderError
from kifu.records import Origin, ToolCall, as_ints
from kifu.render import Message, SymbolRenderer, ToolView

ACTIONS = ("inspect", "open_red", "finish")
TOOLS = tuple(ToolView(name=name, description="", parameters={"type": "object"}) for name in ACTIONS)


@pytest.fixture
def renderer() -> SymbolRenderer:
    return SymbolRenderer(actions=ACTIONS, vocabulary=("closed", "red", "blue"))


def test_actions_come_first_and_symbols_follow(renderer: SymbolRenderer) -> None:
    (piece,) = renderer.start(
        [Message(role="system", content="?"), Message(role="user", content="closed  red\n")], TOOLS
    )
    assert (piece.origin, piece.token_ids.tolist()) == (Origin.PROMPT, [3, 4])
    assert renderer.vocab_size == 6
    assert renderer.stop_ids == (0, 1, 2)


def test_results_are_appended_without_anything_between(renderer: SymbolRenderer) -> None:
    extension = renderer.extend(as_ints([3, 0]), [], ["blue", "", "closed red"], ended=True)
    assert extension.fork_at is None
    assert [(piece.origin, piece.token_ids.tolist()) for piece in extension.pieces] == [
        (Origin.ENVIRONMENT, [5]),
        (Origin.ENVIRONMENT, [3, 4]),
    ]


def test_an_unknown_symbol_is_named(renderer: SymbolRenderer) -> None:
    with pytest.raises(RenderError, match=r"'rad'.*did you mean `red`"):
        renderer.extend(as_ints([3, 0]), [], ["closed rad"], ended=True)


def test_every_action_reads_as_its_call(renderer: SymbolRenderer) -> None:
    for at, name in enumerate(ACTIONS):
        assert renderer.parse(as_ints([at]), TOOLS).calls == (ToolCall(name=name),)
        assert renderer.compose([ToolCall(name=name)], TOOLS).tolist() == [at]


@pytest.mark.parametrize("ids", [[], [4], [0, 1]])
def test_a_turn_that_is_not_one_action_is_an_error(renderer: SymbolRenderer, ids: list[int]) -> None:
    parsed = renderer.parse(as_ints(ids), TOOLS)
    assert parsed.calls == ()
    assert parsed.error is not None


def test_the_phase_mask_is_the_support_of_the_first_token_only(renderer: SymbolRenderer) -> None:
    constraint = renderer.constraint(TOOLS, ["finish", "inspect"])
    assert np.array_equal(constraint.allowed(()), [0, 2])  # type: ignore[arg-type]
    assert np.array_equal(constraint.allowed((0,)), [])  # type: ignore[arg-type]
    assert constraint.digest == renderer.constraint(TOOLS[:1] + TOOLS[2:], None).digest
    assert constraint.digest != renderer.constraint(TOOLS, None).digest


def test_a_phase_without_an_action_is_refused(renderer: SymbolRenderer) -> None:
    with pytest.raises(RenderError, match="no action"):
        renderer.constraint(TOOLS, [])


def test_tools_with_arguments_or_without_an_action_are_refused(renderer: SymbolRenderer) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    needy = ToolView(name="finish", description="", parameters=dict(schema))  # type: ignore[arg-type]
    unknown = ToolView(name="fly", description="", parameters={})
    for tool, why in ((needy, "has no arguments"), (unknown, "no action")):
        with pytest.raises(RenderError, match=why):
            renderer.start([Message(role="user", content="red")], [tool])


def test_an_observation_without_symbols_is_no_context(renderer: SymbolRenderer) -> None:
    with pytest.raises(RenderError, match="no symbol"):
        renderer.start([Message(role="user", content=" ")], TOOLS)


@pytest.mark.parametrize("vocabulary", [(), ("a", "a"), ("a b",), ("",)])
def test_a_vocabulary_must_be_distinct_words(vocabulary: tuple[str, ...]) -> None:
    with pytest.raises(RenderError):
        SymbolRenderer(actions=ACTIONS, vocabulary=vocabulary)


def test_the_digest_depends_on_the_order_of_symbols(renderer: SymbolRenderer) -> None:
    other = SymbolRenderer(actions=ACTIONS, vocabulary=("red", "closed", "blue"))
    assert renderer.digests.tokenizer != other.digests.tokenizer
