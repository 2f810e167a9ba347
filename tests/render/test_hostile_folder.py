"""Tokenizers and generation configs as hostile input: refused by name or harmless, never the end of the process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from kifu.errors import RenderError
from kifu.records import Origin
from kifu.render import ChatTokenizer, Chunk, Level, dialect, load_renderer, load_tokenizer

MakeFolder: TypeAlias = Callable[..., Path]

UNREADABLE: dict[str, dict[str, Any]] = {
    "a table of characters that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a table that points beyond itself": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}
    },
    "something in place of nothing": {
        "normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 1_000}
    },
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "stripping more than there is": {"decoder": {"type": "Strip", "content": "H", "start": 5, "stop": 9}},
    "no unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"}},
    "no pieces": {"model": {"type": "Unigram", "unk_id": None, "vocab": [], "byte_fallback": False}},
    "a prefix longer than tokens": {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
        | {"continuing_subword_prefix": "#" * 9}
    },
    "characters that become a million": {
        "normalizer": {"type": "Replace", "pattern": {"String": "\ua66e"}, "content": "y" * 1_000_000}
    },
    "characters that become a million in steps": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "y"}, "content": "y" * 10}] * 6,
        }
    },
    "tokens that become a million characters": {
        "decoder": {"type": "Replace", "pattern": {"String": "y"}, "content": "y" * 1_000_000}
    },
}


@pytest.mark.parametrize("parts", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_part_the_library_cannot_work_with_is_refused(
    make_folder: MakeFolder, toy_tokenizer: str, parts: dict[str, Any]
) -> None:
    folder = make_folder("plain", tokenizer=toy_tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(toy_tokenizer) | parts))
    with pytest.raises(RenderError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_a_pattern_that_takes_for_ever_on_some_text_is_an_error_of_the_tokenizer(toy_tokenizer: str) -> None:
    parts = json.loads(toy_tokenizer)
    parts["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"(?:a|aa)+b|\S+|\s+"}
    tokenizer = ChatTokenizer(source=json.dumps(parts), config={})
    with pytest.raises(RenderError, match="retry-limit"):
        tokenizer.encode("a" * 60)


@pytest.mark.parametrize(
    "parts",
    [
        {
            "padding": {"strategy": {"Fixed": 4_096}, "direction": "Right", "pad_to_multiple_of": None}
            | {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
        },
        {"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}},
        {"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 9}},
    ],
    ids=["padding", "truncation", "truncation that cannot be"],
)
def test_a_prompt_is_neither_padded_nor_cut(toy_tokenizer: str, parts: dict[str, Any]) -> None:
    """A padding of four billion ids would end the process."""
    tokenizer = ChatTokenizer(source=json.dumps(json.loads(toy_tokenizer) | parts), config={})
    text = "You are a helpful assistant."
    plain = ChatTokenizer(source=toy_tokenizer, config={}).encode(text).tolist()
    assert tokenizer.encode(text).tolist() == tokenizer.encode_whole(text).tolist() == plain


def test_a_word_that_is_a_control_token_may_stand_in_a_text_often(toy_tokenizer: str) -> None:
    """The config makes a control token of a part of words, and a result of a tool repeats it."""
    tokenizer = ChatTokenizer(source=toy_tokenizer, config={"eos_token": "he"})
    ids = tokenizer.encode("he" * 2_000)
    assert tokenizer.decode(ids) == "he" * 2_000
    assert not tokenizer.control_ids & set(ids.tolist())


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("stops", [True, -1, "a", ["a"], [[1]], [1.5], [None], {"a": 1}, [2, "x"], [False]])
def test_an_end_of_turn_that_is_no_id_is_refused(make_folder: MakeFolder, name: str, stops: object) -> None:
    folder = make_folder("plain")
    (folder / "generation_config.json").unlink()
    (folder / name).write_text(json.dumps({"eos_token_id": stops}))
    with pytest.raises(RenderError, match=rf"{name}: eos_token_id .* is no id"):
        load_tokenizer(folder)


def test_a_model_whose_turns_never_end_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}", stops=())
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(RenderError, match="which token ends a turn"):
        load_renderer(folder, dialect=dialect("command"))


@pytest.fixture(scope="module")
def crowded(toy_tokenizer: str) -> ChatTokenizer:
    """Added tokens that begin with one another, and some that take the white space beside them."""
    full = Tokenizer.from_str(toy_tokenizer)
    full.add_special_tokens([AddedToken(text, normalized=False) for text in ("<a>", "<a><b>", "<a><b>c]", "^", "]-")])
    full.add_special_tokens([AddedToken("<l>", lstrip=True, normalized=False)])
    full.add_special_tokens([AddedToken("<r>", rstrip=True, normalized=False)])
    return ChatTokenizer(source=full.to_str(), config={})


@given(parts=st.lists(st.sampled_from(["<a>", "<b>", "c]", "^", "]-", "<l>", "<r>", " ", "\n", "x", "<"]), max_size=14))
@settings(max_examples=200, deadline=None)
def test_added_tokens_are_found_as_the_library_finds_them(parts: list[str], crowded: ChatTokenizer) -> None:
    text = "".join(parts)
    assert crowded.encode(text, Level.TEMPLATE).tolist() == crowded.encode_whole(text).tolist()


@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", "a", "b"]), max_size=10),
    quoted=st.lists(st.sampled_from(["<think>a", "a<think>", "b</think>b", "<think></think>"]), max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_no_added_token_is_found_inside_what_is_quoted(
    parts: list[str], quoted: list[str], crowded: ChatTokenizer
) -> None:
    text = "".join(parts)
    chunk = Chunk(origin=Origin.PROMPT, level=Level.AUTHOR, text=text, quoted=tuple(quoted))
    found = [int(token) for piece in crowded.encode_chunks([chunk]) for token in piece.token_ids]
    assert sum(token in crowded.control_ids for token in found) == _outside(text, quoted)


def _outside(text: str, quoted: list[str]) -> int:
    """Added tokens of a text that no quoted string covers, counted the slow way; matches of one string part."""
    covered = []
    for string in quoted:
        at = text.find(string)
        while at >= 0:
            covered.append((at, at + len(string)))
            at = text.find(string, at + len(string))
    places = [
        (at, at + len(token))
        for token in ("<think>", "</think>")
        for at in range(len(text))
        if text.startswith(token, at)
    ]
    return sum(not any(low <= start and stop <= high for low, high in covered) for start, stop in places)
