"""Patterns against Python's regular expressions, grammars of calls against the calls they let through."""

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.errors import RenderError
from kifu.policy import Constraint
from kifu.render import CallGrammar, ChatTokenizer, TokenTrie, ToolView, call_grammar, dialect
from kifu.render.regular import Automaton, pattern
from kifu.render.tokenizer import Level

EXPRESSION = r"^([0-9]{1,2}|[a-z])((\+|-|\*|//){1}([0-9]{1,2}|[a-z])){0,2}$"


@pytest.fixture(scope="module")
def toy(toy_tokenizer: str) -> ChatTokenizer:
    return ChatTokenizer(source=toy_tokenizer, config={"eos_token": "<|im_end|>"})


def tool(name: str, **patterns: str) -> ToolView:
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "pattern": value} for key, value in patterns.items()},
        "required": list(patterns),
    }
    return ToolView(name=name, description="", parameters=dict(schema))  # type: ignore[arg-type]


ATOMS = st.sampled_from(["a", "b", "[ab]", "[a-c-]", r"\.", r"\d", "[0-2]", r"\*", "[.*]"])


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "{1,}"])
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(parts, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


@given(
    source=st.recursive(ATOMS, grown, max_leaves=8),
    texts=st.lists(st.text(alphabet="abc.*-01", max_size=6), min_size=20, max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_a_pattern_takes_the_texts_that_python_takes(source: str, texts: list[str]) -> None:
    automaton = Automaton.of(pattern(f"^{source}$"))
    found = [automaton.is_whole(automaton.read(automaton.start, text)) for text in texts]
    assert found == [re.fullmatch(source, text) is not None for text in texts]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("a+", "begin with"),
        ("^a|b$", "in a group"),
        ("^[^a]$", "left out"),
        ("^.$", "not understood"),
        (r"^\w$", "not understood"),
        ("^(a$", "not closed"),
        ("^a)$", "nothing opened"),
        ("^[a$", "not closed"),
        ("^a{3,2}$", "goes down"),
        ("^a{99}$", "above 64"),
        ("^((((a{64}){64}){64}){64})$", "more than"),
    ],
)
def test_what_is_not_understood_is_named(source: str, why: str) -> None:
    with pytest.raises(RenderError, match=why):
        Automaton.of(pattern(source))


def written(grammar: Constraint, rng: random.Random) -> tuple[int, ...]:
    """One turn, each token drawn evenly from those allowed."""
    ids: tuple[int, ...] = ()
    while True:
        allowed = grammar.allowed(ids)
        assert allowed is not None
        if not allowed.size:
            return ids
        assert allowed.tolist() == sorted(set(allowed.tolist()))
        ids = (*ids, rng.choice(allowed.tolist()))


@pytest.mark.parametrize("name", ["json", "hermes", "command"])
def test_whatever_is_written_is_a_call_of_the_pattern(name: str, toy: ChatTokenizer) -> None:
    tools = [tool("answer", arg=EXPRESSION), tool("pair", x="^[ab]{1,3}$", y=r"^\d+$"), tool("done")]
    if name == "command":
        tools = [tools[0], tools[2]]
    grammar = call_grammar(dialect(name), tools, toy, end_id=toy.stop_ids[0])
    rng = random.Random(name)
    seen = set()
    for _ in range(120):
        ids = written(grammar, rng)
        assert ids[-1] == toy.stop_ids[0]
        (call,) = dialect(name).parse(toy.decode(ids[:-1]), tools).calls
        seen.add(call.name)
        for key, value in call.arguments.items():
            source = {"arg": EXPRESSION, "x": "^[ab]{1,3}$", "y": r"^\d+$"}[key]
            assert re.fullmatch(source[1:-1], str(value))
    assert seen == {item.name for item in tools}


@given(parts=st.lists(st.sampled_from(["x", "7", "31"]), min_size=1, max_size=3), sign=st.sampled_from(["+", "//"]))
@settings(max_examples=40, deadline=None)
def test_every_such_call_can_be_written_as_the_tokenizer_would(parts: list[str], sign: str, toy_tokenizer: str) -> None:
    toy = ChatTokenizer(source=toy_tokenizer, config={"eos_token": "<|im_end|>"})
    grammar = call_grammar(dialect("json"), [tool("answer", arg=EXPRESSION)], toy, end_id=toy.stop_ids[0])
    head = toy.encode('{"tool": "answer", "arg": "').tolist()
    ids = [*head, *toy.encode(sign.join(parts)).tolist(), *toy.encode('"}').tolist(), toy.stop_ids[0]]
    for at, token in enumerate(ids):
        allowed = grammar.allowed(tuple(ids[:at]))
        assert allowed is not None
        assert token in allowed
    ended = grammar.allowed(tuple(ids))
    assert ended is not None
    assert ended.size == 0


def test_a_token_is_allowed_exactly_where_its_text_keeps_to_the_pattern(toy: ChatTokenizer) -> None:
    """By trying every token of the vocabulary with a regular expression for what may still come."""
    grammar = call_grammar(dialect("json"), [tool("say", word="^(ab|abc|b)+$")], toy, end_id=toy.stop_ids[0])
    head = tuple(toy.encode('{"tool": "say", "word": "').tolist())
    allowed = grammar.allowed(head)
    assert allowed is not None
    begins = re.compile(r'(ab|abc|b)*(a|(?<=[bc])"}?)?')
    expected = {token for token, text in toy.texts.items() if text and text[0] != '"' and begins.fullmatch(text)}
    assert set(allowed.tolist()) == expected
    assert len(expected) >= 2


def test_texts_of_tokens_join_to_what_they_decode_to(toy: ChatTokenizer) -> None:
    for text in ("x*7+3", " sum(map(int, str(x)))", "a  b\n"):
        assert "".join(toy.texts[token] for token in toy.encode(text).tolist()) == text


def test_the_digest_names_the_calls(toy: ChatTokenizer) -> None:
    def digest(*tools: ToolView) -> str:
        return call_grammar(dialect("json"), tools, toy, end_id=toy.stop_ids[0]).digest

    one, other = tool("a", x="^b$"), tool("c", x="^d$")
    assert digest(one, other) == digest(other, one)
    assert len({digest(one), digest(other), digest(one, other), digest(tool("a", x="^b?$"))}) == 4


def test_a_prefix_outside_the_grammar_is_refused(toy: ChatTokenizer) -> None:
    grammar = call_grammar(dialect("json"), [tool("a", x="^b$")], toy, end_id=toy.stop_ids[0])
    with pytest.raises(RenderError, match="begins with"):
        grammar.allowed((toy.stop_ids[0],))


@pytest.mark.parametrize("source", ['^"$', r"^\\$", "^[ -~]$"])
def test_a_character_that_a_call_would_have_to_escape_is_refused(source: str, toy: ChatTokenizer) -> None:
    with pytest.raises(RenderError, match="cannot hold as it is"):
        call_grammar(dialect("json"), [tool("a", x=source)], toy, end_id=toy.stop_ids[0])


def test_a_command_that_goes_on_where_another_ends_is_told_apart(toy: ChatTokenizer) -> None:
    views = [
        ToolView(name="go", description="", parameters={"type": "object", "properties": {}}, command="go"),
        ToolView(name="on", description="", parameters=tool("on", x="^b$").parameters, command="go {x}"),
    ]
    grammar = call_grammar(dialect("command"), views, toy, end_id=toy.stop_ids[0])
    assert isinstance(grammar, CallGrammar)
    assert {toy.decode(written(grammar, random.Random(at))[:-1]) for at in range(20)} == {"go", "go b"}


def test_tools_without_patterns_keep_the_listed_grammar(toy: ChatTokenizer) -> None:
    assert isinstance(call_grammar(dialect("json"), [tool("go")], toy, end_id=toy.stop_ids[0]), TokenTrie)


EDIT = ToolView(
    name="edit",
    description="",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "share": {"type": "number"}},
        "required": ["path", "line"],
    },
)
BODY = {"json": '{"tool": "edit", ', "hermes": '<tool_call>\n{"name": "edit", "arguments": {'}
END = {"json": "}", "hermes": "}}\n</tool_call>"}


def is_written(grammar: Constraint, toy: ChatTokenizer, text: str) -> bool:
    """Whether the tokenizer's own encoding of a whole turn keeps to the grammar; markup stands only before a value."""
    head, begin, rest = text.partition('"path":')
    ids = [*toy.encode(head + begin, Level.AUTHOR).tolist(), *toy.encode(rest).tolist(), toy.stop_ids[0]]
    for at, token in enumerate(ids):
        allowed = grammar.allowed(tuple(ids[:at]))
        assert allowed is not None
        if token not in allowed:
            return False
    return True


@pytest.fixture(scope="module", params=["json", "hermes"])
def free(request: pytest.FixtureRequest, toy: ChatTokenizer) -> tuple[str, Constraint]:
    name = str(request.param)
    return name, call_grammar(dialect(name), [EDIT, tool("done")], toy, end_id=toy.stop_ids[0])


@given(
    path=st.text(alphabet=st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=12),
    line=st.integers(-(10**14), 10**14),
    share=st.none() | st.integers(-999, 999).map(lambda tenths: tenths / 8),
)
@settings(max_examples=60, deadline=None)
def test_any_string_and_number_can_be_written_as_json_writes_it(
    path: str, line: int, share: float | None, free: tuple[str, Constraint], toy_tokenizer: str
) -> None:
    toy = ChatTokenizer(source=toy_tokenizer, config={"eos_token": "<|im_end|>"})
    name, grammar = free
    wanted = {"path": path, "line": line} | ({} if share is None else {"share": share})
    inside = json.dumps(wanted)[1:-1].replace("</", "<\\u002f").replace("<t", "<\\u0074")
    text = BODY[name] + inside + END[name]
    assert is_written(grammar, toy, text)
    (call,) = dialect(name).parse(text, [EDIT]).calls
    assert dict(call.arguments) == wanted


@pytest.mark.parametrize(
    "inside",
    [
        '"path": "a\nb", "line": 1',
        '"path": "\\ud800", "line": 1',
        '"path": "a" "b", "line": 1',
        '"path": "\\x", "line": 1',
        '"path": "é", "line": 1',
        '"path": a, "line": 1',
        '"path": "a", "line": 01',
        '"path": "a", "line": "1"',
        '"path": "a", "line": 1.5',
        '"path": "a", "line": 1, "share": NaN',
        '"path": "a"',
    ],
)
def test_what_json_or_the_schema_does_not_hold_cannot_be_written(
    inside: str, free: tuple[str, Constraint], toy: ChatTokenizer
) -> None:
    name, grammar = free
    assert is_written(grammar, toy, BODY[name] + '"path": "a", "line": 1' + END[name])
    assert not is_written(grammar, toy, BODY[name] + inside + END[name])


@pytest.mark.parametrize("mark", ["</tool_call>", "<tool_call>", "<</tool_call>"])
def test_a_string_cannot_end_or_open_a_call_of_hermes(mark: str, toy: ChatTokenizer) -> None:
    grammar = call_grammar(dialect("hermes"), [EDIT], toy, end_id=toy.stop_ids[0])
    for inside, is_right in ((mark, False), (mark.replace("<", "\\u003c"), True), ("a < b <", True)):
        text = f'{BODY["hermes"]}"path": "{inside}", "line": 1{END["hermes"]}'
        assert is_written(grammar, toy, text) is is_right


def test_commands_hold_no_free_text(toy: ChatTokenizer) -> None:
    with pytest.raises(RenderError, match=r"parameter `path`: any string is possible.*`json`, `hermes`"):
        call_grammar(dialect("command"), [EDIT], toy, end_id=toy.stop_ids[0])
