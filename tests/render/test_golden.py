"""Fresh conversations against transformers' own apply_chat_template, token by token."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from kifu.models import ModelFolder
from kifu.records import ToolCall
from kifu.render import ChatRenderer, Message, ToolView, dialect, load_renderer

MakeFolder: TypeAlias = Callable[..., Path]

CONTENT = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
SPACED = st.text(alphabet=" \n\t\r\u00a0ab.'1é棋🙂", max_size=20)
TOOLS = (
    ToolView(
        name="get",
        description='Look "it" up → naïve.',
        parameters={"type": "object", "properties": {"arg": {"type": "string"}}, "required": ["arg"]},
    ),
)
SCHEMAS = [
    {
        "type": "function",
        "function": {"name": "get", "description": TOOLS[0].description, "parameters": dict(TOOLS[0].parameters)},
    }
]


def say(role: str, content: str) -> Message:
    match role:
        case "system" | "user" | "assistant" | "tool":
            return Message(role=role, content=content)
        case _:
            raise AssertionError(role)


def ours(renderer: ChatRenderer, messages: list[Message], tools: tuple[ToolView, ...] = ()) -> list[int]:
    return [int(token) for piece in renderer.start(messages, tools) for token in piece.token_ids]


def theirs(folder: Path, messages: list[dict[str, Any]], **options: Any) -> list[int]:  # noqa: ANN401
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    found = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, **options
    )
    return [int(token) for token in found["input_ids"]]


def spells_control(text: str) -> bool:
    return any(part in text for part in ("<|", "|>", "think>", "tool_"))


@pytest.mark.parametrize("template", ["plain", "tools", "thinking", "trimming"])
def test_a_fresh_conversation_has_the_ids_of_transformers(make_folder: MakeFolder, template: str) -> None:
    folder = make_folder(template)
    renderer = load_renderer(folder, dialect=dialect("hermes"))
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(texts=st.lists(CONTENT | SPACED, min_size=4, max_size=4))
    def check(texts: list[str]) -> None:
        texts = [text for text in texts if not spells_control(text)]
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        if len(messages) < 2:
            return
        found = ours(renderer, [say(role, text) for role, text in zip(roles, texts, strict=False)])
        expected = oracle.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        assert found == list(expected["input_ids"])

    check()


def test_smollm2_conversations_have_the_ids_of_transformers(smollm2: ModelFolder) -> None:
    renderer = load_renderer(smollm2.path, dialect=dialect("command"))
    oracle = PreTrainedTokenizerFast.from_pretrained(smollm2.path)

    @settings(max_examples=60, deadline=None)
    @given(text=CONTENT | SPACED, answer=SPACED)
    def check(text: str, answer: str) -> None:
        if "<" in text or not all(renderer.tokenizer._is_writable(char) for char in text + answer):
            return
        messages = [("user", text), ("assistant", answer), ("user", text[::-1])]
        found = ours(renderer, [say(role, content) for role, content in messages])
        expected = oracle.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
        assert found == list(expected["input_ids"])

    check()


@pytest.mark.parametrize("content", ["", "Let me see."])
def test_calls_and_results_are_written_as_the_template_writes_them(make_folder: MakeFolder, content: str) -> None:
    folder = make_folder("tools")
    calls = (ToolCall(name="get", arguments={"arg": "pens"}), ToolCall(name="get", arguments={"arg": 'a "b" é'}))
    found = ours(
        load_renderer(folder, dialect=dialect("hermes")),
        [
            Message(role="user", content="How many?"),
            Message(role="assistant", content=content, calls=calls),
            Message(role="tool", content="40"),
            Message(role="tool", content=" 59 "),
        ],
        TOOLS,
    )

    written = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]
    expected = theirs(
        folder,
        [
            {"role": "user", "content": "How many?"},
            {"role": "assistant", "content": content, "tool_calls": written},
            {"role": "tool", "content": "40"},
            {"role": "tool", "content": " 59 "},
        ],
        tools=SCHEMAS,
    )
    assert found == expected


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_switched_as_the_template_switches_it(make_folder: MakeFolder, thinking: bool) -> None:
    folder = make_folder("thinking")
    renderer = load_renderer(folder, dialect=dialect("hermes"), thinking=thinking)

    found = ours(renderer, [Message(role="user", content="hi")])

    assert found == theirs(folder, [{"role": "user", "content": "hi"}], enable_thinking=thinking)
    assert ("<think>" in renderer.tokenizer.decode(found)) is not thinking


QWEN = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "llama3", "lfm2", "phi3", "glm4moe")


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chat templates of published models, out of a wheel of trl; nothing is installed."""
    folder = tmp_path_factory.mktemp("trl")
    download(folder)
    with zipfile.ZipFile(next(folder.glob("trl-*.whl"))) as wheel:
        for name in QWEN:
            (folder / f"{name}.jinja").write_bytes(wheel.read(f"trl/chat_templates/{name}.jinja"))
    return folder


def download(folder: Path) -> None:

    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "trl==1.16.0"]
    subprocess.run(command, check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", QWEN)
def test_published_templates_have_the_ids_of_transformers(make_folder: MakeFolder, published: Path, name: str) -> None:
    folder = make_folder((published / f"{name}.jinja").read_text())
    renderer = load_renderer(folder, dialect=dialect("command"))
    texts = [("system", "Be brief.\n"), ("user", " a  b\n\nc "), ("assistant", "yes"), ("user", "naïve 棋 🙂")]

    found = ours(renderer, [say(role, text) for role, text in texts])

    assert found == theirs(folder, [{"role": role, "content": text} for role, text in texts])


@pytest.mark.slow
@pytest.mark.parametrize("name", QWEN)
def test_a_bridged_turn_of_a_published_template_equals_its_full_render(
    make_folder: MakeFolder, published: Path, name: str
) -> None:
    """An answer in canonical tokens, then a user message: the ids are those of rendering everything at once."""
    folder = make_folder((published / f"{name}.jinja").read_text())
    renderer = load_renderer(folder, dialect=dialect("command"))
    history = [Message(role="user", content="look"), Message(role="assistant", content="yes it is")]
    context = ours(renderer, history[:1])
    end = [renderer.habits.end_id] if renderer.habits.end_id is not None else []
    context += [*renderer.tokenizer.encode("yes it is").tolist(), *end]

    extension = renderer.extend(np.array(context, dtype=np.int32), history, ["go on"], ended=bool(end))

    kept = context if extension.fork_at is None else context[: extension.fork_at]
    found = kept + [int(token) for piece in extension.pieces for token in piece.token_ids]
    texts = [("user", "look"), ("assistant", "yes it is"), ("user", "go on")]
    assert found == theirs(folder, [{"role": role, "content": text} for role, text in texts])
