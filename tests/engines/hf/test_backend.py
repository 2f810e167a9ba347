"""Other families of models: what is kept, what is recomputed, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from kifu.engines.hf import HfSampler, build, load_model
from kifu.engines.hf.attention import Feed, Layout
from kifu.engines.hf.backend import choose_backend, is_reproducible
from kifu.engines.hf.kept import Kept
from kifu.engines.hf.rows import Rows
from kifu.errors import ModelError, UsageError
from kifu.models import ModelFolder
from kifu.policy import Engine, EngineSpec, Machine
from kifu.testing import SamplerCheck, check_sampler

SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BLOOM = BloomConfig(vocab_size=300, hidden_size=48, n_layer=2, n_head=4, attention_dropout=0.0, hidden_dropout=0.0)


def saved(config: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """A random model of a family, written to a folder."""
    torch.manual_seed(0)
    make: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (MistralConfig(**SMALL, sliding_window=16), True),
        (Qwen3Config(**SMALL), True),
        (CohereConfig(**{k: v for k, v in SMALL.items() if k != "head_dim"}, logit_scale=0.25), True),
        (
            GPT2Config(
                vocab_size=300,
                n_positions=512,
                n_embd=48,
                n_layer=2,
                n_head=4,
                attn_pdrop=0.0,
                embd_pdrop=0.0,
                resid_pdrop=0.0,
            ),
            True,
        ),
        (BLOOM, False),
    ],
    ids=["mistral with a window", "qwen3", "cohere with a logit scale", "gpt2", "bloom"],
)
def test_every_family_samples_what_plain_transformers_says(
    config: PreTrainedConfig, kept: bool, tmp_path: Path, recompute: Callable[..., Any]
) -> None:
    """Sliding windows, scaled logits and attention that is not understood: the oracle is one plain forward."""
    model = saved(config, tmp_path / "model")
    made: list[Engine] = []

    def make(*, max_slots: int) -> Engine:
        machine = Machine(threads=1, max_slots=max_slots)
        made.append(build(EngineSpec(model=str(tmp_path / "model"), machine=machine, max_context=200)))
        return made[-1]

    prompts = tuple(tuple(int(i) for i in np.random.default_rng(n).integers(3, 300, n)) for n in (37, 5, 21))
    check = SamplerCheck(prompts=prompts, allowed=((4, 5, 6), (9,), (11, 12)), tokens=4)

    found = check_sampler(make, check, recompute=lambda asked: recompute(model, asked, made[0].bitmaps))

    assert "bit-identical" in found[-1]
    assert made[0].facts["sampling"].startswith("kept" if kept else "whole contexts")


def test_a_model_that_caps_its_logits_is_refused(tmp_path: Path) -> None:
    """The learner could not evaluate the distribution."""
    saved(Gemma2Config(**SMALL, final_logit_softcapping=0.5), tmp_path / "model")

    with pytest.raises(ModelError, match="more to its logits"):
        load_model(str(tmp_path / "model"), dtype="float32", device="cpu")


def test_dropout_is_refused_by_name(tmp_path: Path) -> None:
    """GPT-2's default has it."""
    saved(GPT2Config(vocab_size=300, n_embd=48, n_layer=1, n_head=4), tmp_path / "model")

    with pytest.raises(ModelError, match=r"dropout .*attn_dropout"):
        load_model(str(tmp_path / "model"), dtype="float32", device="cpu")


def test_a_folder_without_a_model_says_how_to_get_one(tmp_path: Path) -> None:
    """Where, what was expected, what to do."""
    with pytest.raises(ModelError, match="kifu models pull"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_unknown_options_and_too_much_context_are_refused(tmp_path: Path) -> None:
    """The engine's own settings are checked by it."""
    saved(Qwen3Config(**SMALL), tmp_path / "model")

    with pytest.raises(UsageError, match="no option `speed`"):
        build(EngineSpec(model=str(tmp_path / "model"), options={"speed": 2}))
    with pytest.raises(UsageError, match="512 positions"):
        build(EngineSpec(model=str(tmp_path / "model"), max_context=600, machine=Machine(threads=1)))
    with pytest.raises(UsageError, match="no model"):
        build(EngineSpec())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_do_not_depend_on_pieces_neighbours_or_slots(tiny_model: ModelFolder, dtype: str) -> None:
    """300 tokens fed in random pieces among random neighbours, bit for bit as in one piece alone."""
    model = load_model(str(tiny_model.path), dtype=dtype, device="cpu")
    backend = choose_backend(model, num_slots=12, capacity=400)
    random = np.random.default_rng(5)
    ids = tuple(int(token) for token in random.integers(0, 600, 300))
    wanted = backend.forward([Feed(slot=0, start=0, token_ids=ids)])

    for slot in (3, 7):
        found, start = [], 0
        while start < len(ids):
            length = int(min(len(ids) - start, random.choice([1, 1, 2, 3, 7, 30, 90])))
            feeds = [Feed(slot=slot, start=start, token_ids=ids[start : start + length])]
            for other in random.choice([4, 5, 6, 8, 9, 11], int(random.integers(0, 5)), replace=False):
                size = int(random.choice([1, 5, 140, 399]))
                feeds.append(Feed(slot=int(other), start=0, token_ids=ids[:1] * size))
            found.append(backend.forward(feeds)[:length])
            start += length
        assert torch.equal(torch.cat(found), wanted)
    assert is_reproducible(backend, 600, num_slots=12, capacity=400)


@pytest.mark.parametrize("rows", [8, 40])
def test_a_forward_has_one_of_the_sizes_that_agree(rows: int) -> None:
    """Padding rows stay outside every context."""
    kept = Kept(num_slots=4, capacity=200, dtype=torch.float32, device=torch.device("cpu"))

    feeds = [Feed(slot=1, start=126, token_ids=(7, 8, 9)), Feed(slot=3, start=0, token_ids=(5,))]
    layout = Layout(feeds, kept, Rows((rows, 64)))

    assert layout.input_ids.shape == (1, rows)
    assert layout.num_rows == 4
    assert layout.positions.tolist() == [126, 127, 128, 0]
    assert sorted(bucket.visible for bucket in layout.buckets) == [128, 256]


def test_a_recomputing_sampler_says_so(tmp_path: Path) -> None:
    """The fact is for people and the run file."""
    saved(BLOOM, tmp_path / "model")
    model = load_model(str(tmp_path / "model"), dtype="float32", device="cpu")

    sampler = HfSampler(model, machine=Machine(threads=1, max_slots=4), max_context=64)

    assert sampler.backend == "whole contexts recomputed"
    assert sampler.reproducible
