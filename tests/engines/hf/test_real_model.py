"""SmolLM2-135M in low precision: how far its logprobs are from float32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from kifu.engines.hf import build, load_model
from kifu.engines.hf.attention import Feed
from kifu.engines.hf.backend import choose_backend
from kifu.models import ModelFolder
from kifu.policy import EngineSpec, Machine, Request, ScoreRequest
from kifu.records import Sampling, as_ints

SIZES = (1, 5, 40, 140, 399)
TEXTS = (
    "<|im_start|>user\nName three rivers of Europe.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about a key and a door.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nExplain what a compiler does to a child.<|im_end|>\n<|im_start|>assistant\n",
)
BAND = {"median": 0.03, "p99": 0.3, "max": 0.6}
"""Nats; documented in docs/engines.md."""


@pytest.mark.slow
async def test_bfloat16_logprobs_stay_in_the_documented_band(
    smollm2: ModelFolder, recompute: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    """Recorded logprobs against plain float32; recomputed by the sampler itself they are equal bit for bit."""
    machine = Machine(sampler_dtype="bfloat16", trainer_dtype="bfloat16", max_slots=8)
    engine = build(EngineSpec(model=str(smollm2.path), machine=machine, max_context=256))
    assert engine.reproducible
    plain = AutoModelForCausalLM.from_pretrained(str(smollm2.path), dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(smollm2.path / "tokenizer.json"))
    distances = []
    for number, text in enumerate(TEXTS):
        prompt = tokenizer.encode(text).ids
        written = await engine.sampler.sample(
            Request(
                context=str(number),
                token_ids=as_ints(prompt),
                sampling=Sampling(stream=str(number), stop_ids=(2,)),
                turn=0,
                max_new_tokens=64,
            )
        )
        question = ScoreRequest(
            token_ids=as_ints([*prompt, *written.token_ids]),
            positions=as_ints(np.arange(written.token_ids.size) + len(prompt)),
            sampling=written.sampling,
        )
        again = (await engine.sampler.score([question]))[0]
        np.testing.assert_array_equal(again.logprobs, written.logprobs)
        distances.append(np.abs(recompute(plain, question, {}) - written.logprobs))

    error = np.concatenate(distances)
    found = {"median": np.median(error), "p99": np.quantile(error, 0.99), "max": error.max()}
    record_property("logprob_error", str(found))
    print(
        f"\nbfloat16 against float32, {error.size} tokens, nats: { {k: round(float(v), 4) for k, v in found.items()} }"
    )
    assert all(found[name] <= limit for name, limit in BAND.items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_of_the_real_model_do_not_depend_on_neighbours(smollm2: ModelFolder, dtype: str) -> None:
    """300 tokens in random pieces among random neighbours, bit for bit as alone: wide layers change kernels."""
    model = load_model(str(smollm2.path), dtype=dtype, device="cpu")
    backend = choose_backend(model, num_slots=12, capacity=400)
    random = np.random.default_rng(7)
    ids = tuple(int(token) for token in random.integers(0, model.vocabulary, 300))
    alone = backend.forward([Feed(slot=0, start=0, token_ids=ids)])
    start = 0
    while start < len(ids):
        length = int(min(len(ids) - start, random.choice([1, 1, 2, 3, 7, 30, 90])))
        feeds = [Feed(slot=3, start=start, token_ids=ids[start : start + length])]
        for other in random.choice([4, 5, 6, 8, 9, 11], int(random.integers(0, 5)), replace=False):
            feeds.append(Feed(slot=int(other), start=0, token_ids=ids[:1] * int(random.choice(SIZES))))
        assert torch.equal(backend.forward(feeds)[:length], alone[start : start + length])
        start += length
