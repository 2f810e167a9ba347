"""Oracle: transformers' own loading of the same GGUF file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import pytest
import safetensors.numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kifu.errors import ModelError
from kifu.models import ModelFolder, pull
from kifu.models.convert import convert_gguf

TEXTS = [
    "The capital of France is",
    " 12345 apples, 3.14 and 1/2",
    "naïve 🙂 café, ٣ ½ Ⅷ",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "def f(x):\n\treturn  x\n\n\n  # done",
    "It's we'll I'D 'tis",
    "漢字かな交じり文",
    "\r\n \u00a0 tab\t\x00\x7f",
    '{"tool":"get","arguments":{"name":"pens"}}',
]

COMPARED = """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings bos_token_id eos_token_id pad_token_id tie_word_embeddings hidden_act attention_bias
    mlp_bias
"""


class GgufWriter(Protocol):
    def __call__(self, path: Path, changes: dict[str, Any]) -> Path: ...


@pytest.fixture(scope="module")
def pair(write_gguf: GgufWriter, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelFolder]:
    """A GGUF file and the folder made of it."""
    place = tmp_path_factory.mktemp("pair")
    path = write_gguf(place / "small.gguf", {})
    return path, pull(path, cache=place / "cache")


def test_every_tensor_is_bit_identical_to_transformers(pair: tuple[Path, ModelFolder]) -> None:
    path, folder = pair
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours = safetensors.numpy.load_file(folder.path / "model.safetensors")
    theirs = {name: values.numpy() for name, values in reference.state_dict().items() if name != "lm_head.weight"}
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_array_equal(ours[name], expected, err_msg=name, strict=True)


def test_logits_equal_transformers(pair: tuple[Path, ModelFolder]) -> None:
    path, folder = pair
    ids = torch.tensor([[1, 44, 300, 301, 7, 2]])
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(folder.path)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, reference(ids).logits, rtol=0.0, atol=0.0)


def test_config_equals_transformers_where_it_reads_one(pair: tuple[Path, ModelFolder]) -> None:
    path, folder = pair
    ours = AutoConfig.from_pretrained(folder.path).to_dict()
    theirs = AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    for key in COMPARED.split():
        assert ours[key] == theirs[key], key
    assert np.float32(ours["rms_norm_eps"]) == np.float32(theirs["rms_norm_eps"])
    assert ours["rope_parameters"]["rope_theta"] == theirs["rope_parameters"]["rope_theta"] == 50_000.0


def test_tokenizer_splits_numerals_and_else_equals_transformers(
    pair: tuple[Path, ModelFolder], in_pieces: Callable[[Any, str], list[int]]
) -> None:
    path, folder = pair
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = AutoTokenizer.from_pretrained(folder.path)
    for text in [*TEXTS, "two  spaces  5/12", Path(__file__).read_text()]:
        assert ours.encode(text, add_special_tokens=False) == in_pieces(reference, text), text
    assert ours.special_tokens_map == reference.special_tokens_map
    chat = [{"role": "user", "content": "hello"}]
    assert ours.apply_chat_template(chat, tokenize=False) == reference.apply_chat_template(chat, tokenize=False)


def test_origin_is_stated_and_the_file_is_converted_once(pair: tuple[Path, ModelFolder], tmp_path: Path) -> None:
    path, folder = pair
    stamp = (folder.path / "model.safetensors").stat().st_mtime_ns
    again = pull(path, cache=folder.path.parent.parent)
    assert again == folder
    assert (again.path / "model.safetensors").stat().st_mtime_ns == stamp
    assert folder.source.startswith("small.gguf, SHA-256 ")
    fresh = pull(path, cache=tmp_path)
    assert fresh.digests == folder.digests


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "mamba"}, "architecture `mamba`. Converted are: llama"),
    "another tokenizer": ({"tokenizer_model": "llama"}, "tokenizer `llama` with splitter `smollm`"),
    "another splitter": ({"tokenizer_pre": "qwen2"}, "splitter `qwen2`. Built are: `gpt2` with smollm"),
    "a tensor too many": ({"tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "1 unknown .blk.0.attn_q.bias"),
    "more layers than tensors for them": ({"block_count": 3}, "9 tensors missing"),
    "more layers than could be": ({"block_count": 1 << 30}, "the file is incomplete"),
    "a tensor of another shape": ({"tensors": {"output_norm.weight": np.ones(32, np.float32)}}, r"expected \(64,\)"),
    "a merge of unknown tokens": ({"merges": ["zz qq"]}, "merge 'zz qq' joins or makes a token outside"),
    "an end-of-text id outside the vocabulary": ({"eos": 600}, "is 600, the vocabulary has 600 tokens"),
    "an unread tensor type": ({"kind": gguf.GGMLQuantizationType.Q5_0}, "type 6. Read are: F32, F16, Q4_0, Q4_1, Q8_0"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_converted_is_named_and_leaves_nothing(
    write_gguf: GgufWriter, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "bad.gguf", changes)
    with pytest.raises(ModelError, match=message) as refusal:
        pull(path, cache=tmp_path / "cache")
    assert str(path) in str(refusal.value)
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir() if not entry.name.endswith(".lock")] == []


def test_an_output_layer_of_its_own_is_kept(write_gguf: GgufWriter, tmp_path: Path) -> None:
    head = np.random.default_rng(1).standard_normal((600, 64), dtype=np.float32)
    changes = {"tensors": {"output.weight": head}, "kind": gguf.GGMLQuantizationType.F32}
    folder = pull(write_gguf(tmp_path / "untied.gguf", changes), cache=tmp_path)
    assert json.loads((folder.path / "config.json").read_text())["tie_word_embeddings"] is False
    model = AutoModelForCausalLM.from_pretrained(folder.path)
    np.testing.assert_array_equal(model.lm_head.weight.detach().numpy(), head)


def test_progress_reaches_the_number_of_bytes_written(write_gguf: GgufWriter, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()
    convert_gguf(write_gguf(tmp_path / "a.gguf", {}), tmp_path / "out", report=lambda *pair: told.append(pair))
    values = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors").values()
    assert told[-1] == (sum(one.nbytes for one in values),) * 2
    assert [done for done, _ in told] == sorted({done for done, _ in told})
