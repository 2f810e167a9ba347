"""Oracle: transformers loads the folder as it loads any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from kifu.errors import ModelError
from kifu.models import ModelFolder, tiny_llama

TEXTS = ["open the box with the red key", " a  b\n\n c\t", "naïve 🙂 漢字", '{"tool": "get"} 3.14159', "\x00\x7f\r\n"]


def test_transformers_loads_every_tensor_and_generates(tiny_model: ModelFolder) -> None:
    loaded: Any = LlamaForCausalLM.from_pretrained(tiny_model.path, output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(values.numel() for values in model.parameters()) == tiny_model.num_parameters
    assert type(model).__name__ == tiny_model.architecture
    prompt = torch.tensor([[1, 40, 50]])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
    assert written.shape[1] > prompt.shape[1]


def test_next_token_distribution_is_neither_flat_nor_certain_and_depends_on_the_context(
    tiny_model: ModelFolder,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model.path)
    with torch.no_grad():
        logp = model(torch.tensor([[40, 41, 60], [90, 91, 60]])).logits[:, -1].log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    assert (entropy > 1.0).all()
    assert (entropy < torch.log(torch.tensor(600.0)) - 0.1).all()
    assert (logp[0] - logp[1]).abs().max() > 0.1


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_gives_every_text_back(tiny_model: ModelFolder, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model.path)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert max(ids) < 600


def test_chat_template_is_chatml(tiny_model: ModelFolder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model.path)
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>", add_special_tokens=False) == [0, 1, 2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)


def test_equal_seeds_give_equal_digests_and_others_differ_in_the_weights_only(
    tmp_path: Path, tiny_model: ModelFolder
) -> None:
    again, other = tiny_llama(tmp_path / "again"), tiny_llama(tmp_path / "other", seed=1)
    assert again.digests == tiny_model.digests
    assert other.digests.weights != again.digests.weights
    assert (other.digests.tokenizer, other.digests.template) == (again.digests.tokenizer, again.digests.template)


def test_digest_is_the_published_one(tiny_model: ModelFolder) -> None:
    """Records made in check mode name the model by it; a change of the factory is a change of the model."""
    assert tiny_model.digests.weights == "2a78a8db6c157d180552cce93ca97795b9930a621e3b6d6d211b49fb4b314f6a"


def test_folder_of_another_seed_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "tiny", seed=1)
    with pytest.raises(ModelError, match=r"holds kifu random tiny llama, seed 1, asked for .* seed 2"):
        tiny_llama(tmp_path / "tiny", seed=2)
