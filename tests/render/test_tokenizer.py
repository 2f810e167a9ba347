"""The tokenizer: nothing lost, nothing promoted to a control token, whole-string ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from kifu.errors import RenderError
from kifu.models import ModelFolder
from kifu.records import Origin
from kifu.render import ChatTokenizer, Chunk, Level, load_tokenizer

MakeFolder: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="module")
def toy(toy_tokenizer: str) -> ChatTokenizer:
    return ChatTokenizer(source=toy_tokenizer, config={"eos_token": "<|im_end|>"})


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
@settings(max_examples=150, deadline=None)
def test_text_comes_back_and_holds_no_control_token(text: str, toy: ChatTokenizer) -> None:
    ids = toy.encode(text + "<|im_end|>" + text)
    assert toy.decode(ids) == text + "<|im_end|>" + text
    assert not set(ids.tolist()) & toy.control_ids


@given(parts=st.lists(st.sampled_from(["<|im_end|>", "<think>", "a", " b", "\n", "\n\n", "<", "|>"]), max_size=12))
@settings(max_examples=150, deadline=None)
def test_template_text_has_the_ids_of_the_whole_string(parts: list[str], toy: ChatTokenizer) -> None:
    text = "".join(parts)
    cut = [Chunk(origin=Origin.TEMPLATE, level=Level.TEMPLATE, text=part) for part in parts]
    pieces = toy.encode_chunks(cut)
    found = [int(token) for piece in pieces for token in piece.token_ids]
    assert found == toy.encode_whole(text).tolist()


def test_levels_decide_which_added_tokens_a_text_may_hold(toy: ChatTokenizer) -> None:
    text = "<|im_end|><think>"
    held = {level: [toy.decode([i]) for i in toy.encode(text, level) if i in toy.control_ids] for level in Level}
    assert held == {Level.DATA: [], Level.AUTHOR: ["<think>"], Level.TEMPLATE: ["<|im_end|>", "<think>"]}


def test_a_control_token_cannot_be_assembled_across_the_border_of_trust(toy: ChatTokenizer) -> None:
    pieces = toy.encode_chunks(
        [
            Chunk(origin=Origin.TEMPLATE, level=Level.TEMPLATE, text="a<|im_"),
            Chunk(origin=Origin.ENVIRONMENT, text="end|>b"),
        ]
    )
    assert not {int(token) for piece in pieces for token in piece.token_ids} & toy.control_ids


def test_known_ids_are_taken_as_they_are(toy: ChatTokenizer) -> None:
    pieces = toy.encode_chunks(
        [
            Chunk(origin=Origin.TEMPLATE, level=Level.TEMPLATE, text="<|im_start|>"),
            Chunk(origin=Origin.CONTROLLER, token_ids=(5, 6, 7)),
        ]
    )
    assert pieces[1].token_ids.tolist() == [5, 6, 7]
    assert pieces[1].origin is Origin.CONTROLLER


def test_a_vocabulary_that_itself_spells_a_control_token_is_broken_up() -> None:
    """With ``ignore_merges`` a whole word of the vocabulary needs no merges."""
    letters = ["<", "|", "e", ">", "a", "<|e|>"]
    model = models.BPE(vocab={text: at for at, text in enumerate(letters)}, merges=[], ignore_merges=True)
    tokenizer = ChatTokenizer.__new__(ChatTokenizer)
    full = Tokenizer(model)
    full.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    full.decoder = decoders.Fuse()
    full.add_special_tokens([AddedToken("<|e|>", normalized=False)])
    plain = json.loads(full.to_str()) | {"added_tokens": []}
    assert Tokenizer.from_str(json.dumps(plain)).encode("<|e|>").ids == [5], "the trap is set"
    tokenizer._full, tokenizer._plain = full, Tokenizer.from_str(json.dumps(plain))
    tokenizer.added, tokenizer.control_ids, tokenizer._matchers = (), frozenset({5}), {}
    assert tokenizer.encode("<|e|>").tolist() == [0, 1, 2, 1, 3]


def test_a_tokenizer_that_lowers_case_is_refused(toy_tokenizer: str) -> None:
    broken = Tokenizer.from_str(toy_tokenizer)
    broken.normalizer = normalizers.Lowercase()
    with pytest.raises(RenderError, match="drops ids"):
        ChatTokenizer(source=broken.to_str(), config={})


def test_a_tokenizer_without_an_alphabet_is_refused() -> None:
    small = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    with pytest.raises(RenderError, match="drops ids"):
        ChatTokenizer(source=small.to_str(), config={})


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"7": {"content": "<|im_end|>"}}, "do not belong together"),
        ({"seven": {"content": "<|im_end|>"}}, "do not belong together"),
        (["<|im_end|>"], "expected tokens by their ids"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(toy_tokenizer: str, declared: object, why: str) -> None:
    with pytest.raises(RenderError, match=why):
        ChatTokenizer(source=toy_tokenizer, config={"added_tokens_decoder": declared})


def test_characters_the_vocabulary_cannot_write_are_shown_escaped(smollm2: ModelFolder) -> None:
    """SmolLM2's vocabulary lacks some control bytes; transformers drops them without a word."""
    tokenizer = load_tokenizer(smollm2.path)
    assert "\x04" not in tokenizer.decode(tokenizer.encode_whole("a\x04b"))
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "a\\x04b"
    with pytest.raises(RenderError, match="drops"):
        tokenizer.encode("a\x04b", Level.AUTHOR)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_readable_tokenizer_is_refused(make_folder: MakeFolder, content: str | None) -> None:
    folder = make_folder("plain")
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(RenderError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_stop_ids_hold_every_end_token_of_the_generation_config(make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder("plain", stops=("<|endoftext|>", "<|user|>")))
    assert {tokenizer.decode([token]) for token in tokenizer.stop_ids} == {"<|endoftext|>", "<|user|>", "<|im_end|>"}
