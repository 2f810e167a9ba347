"""Small model folders made on the spot: a byte-level tokenizer and chat templates of several families."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from kifu.records import Origin
from kifu.render import Piece, ToolView

MakeFolder: TypeAlias = Callable[..., Path]

HERE = Path(__file__).parent
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|sys|>", "<|user|>", "<|tool|>", "<|bot|>", "<|system|>"),
    *("<|assistant|>", "<|end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|observation|>"),
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Runs of line breaks are one word, as in the tokenizers of the families the templates stand for."""
CORPUS = (
    "system user assistant tool You are a helpful assistant. Answer with exactly one of these commands.",
    "inspect the box, pickup red key, pickup blue key, open door, finish. The key fits. The key breaks.",
    '{"tool": "get", "arg": "pens"} {"name": "get", "arguments": {"arg": "pens"}}\n\n  two spaces\n',
    "then\n\nthree\n\nfour\n\n",
)


@pytest.fixture(scope="session")
def toy_tokenizer() -> str:
    """Text of a tokenizer.json: byte-level BPE with ChatML's control tokens."""
    found = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    found.train_from_iterator(CORPUS * 4, trainer)
    found.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    found.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return found.to_str()


@pytest.fixture
def make_folder(toy_tokenizer: str, tmp_path: Path) -> MakeFolder:
    """Write a model folder without weights around one of the templates here, or a template's source."""

    def make(template: str, *, tokenizer: str = toy_tokenizer, stops: Sequence[str] = ("<|im_end|>",)) -> Path:
        source = template if "{" in template else (HERE / "templates" / f"{template}.jinja").read_text()
        ids = Tokenizer.from_str(tokenizer)
        config = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        (tmp_path / "tokenizer.json").write_text(tokenizer)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "chat_template.jinja").write_text(source)
        (tmp_path / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [ids.token_to_id(text) for text in stops]})
        )
        return tmp_path

    return make


@pytest.fixture(scope="session")
def key_tools() -> tuple[ToolView, ...]:
    """Tools of a small text world."""
    none: dict[str, object] = {}
    color = {"color": {"type": "string", "enum": ["red", "blue"]}}
    thing = {"object": {"type": "string"}}
    return (
        _tool("inspect", thing, "inspect {object}"),
        _tool("pickup", color, "pickup {color} key"),
        _tool("open", none, "open door"),
        _tool("finish", none, None),
    )


def _tool(name: str, properties: Mapping[str, object], command: str | None) -> ToolView:
    schema = json.loads(json.dumps({"type": "object", "properties": properties, "required": list(properties)}))
    return ToolView(name=name, description=f"To {name}.", parameters=schema, command=command)


@pytest.fixture(scope="session")
def shown() -> Callable[[Sequence[Piece], Callable[[Sequence[int]], str]], list[tuple[Origin, str]]]:
    """Pieces as origins and texts, for comparison by eye."""

    def show(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str]) -> list[tuple[Origin, str]]:
        return [(piece.origin, decode(piece.token_ids.tolist())) for piece in pieces]

    return show
