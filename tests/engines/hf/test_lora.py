"""The adapter against peft: the same file, the same function, the same gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM

from kifu.batching import Tree
from kifu.engines.hf.forward import forest_hidden
from kifu.engines.hf.loading import load_model
from kifu.engines.hf.lora import adapter_tensors, add_adapter, refresh_adapter
from kifu.engines.hf.masters import Masters
from kifu.models import ModelFolder
from kifu.policy import Engine, LoraWeights
from kifu.records import as_ints

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = np.random.default_rng(3).integers(3, 600, 24)


def chain(ids: np.ndarray) -> Tree:
    """One sequence."""
    return Tree(
        token_ids=as_ints(ids), depths=as_ints(np.arange(ids.size)), parents=np.arange(-1, ids.size - 1, dtype=np.int32)
    )


def randomized(model_parameters: Mapping[str, Tensor]) -> None:
    """Give both factors numbers, so that B A is not zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model_parameters.items():
            if name.endswith((".lora_A", ".lora_B")):
                value.copy_(0.1 * torch.randn(value.shape, generator=generator))


def test_file_function_and_gradient_are_those_of_peft(tiny_model: ModelFolder) -> None:
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    add_adapter(model, LoraWeights(rank=4, alpha=8.0), seed=0, dtype=torch.float32)
    trained = {name: value for name, value in model.parameters().items() if value.requires_grad}
    randomized(trained)
    refresh_adapter(model)
    plain = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32)
    peer: Any = get_peft_model(plain, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))

    loaded: Any = set_peft_model_state_dict(peer, adapter_tensors(trained))
    hidden = forest_hidden(model, [chain(IDS)], unrolled=False)
    wanted = peer.base_model.model.model(input_ids=torch.from_numpy(IDS)[None]).last_hidden_state[0]
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    (hidden * direction).sum().backward()
    (wanted * direction).sum().backward()

    assert not loaded.unexpected_keys
    assert not [name for name in loaded.missing_keys if "lora_" in name]
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)
    theirs = {name: value for name, value in peer.named_parameters() if value.requires_grad}
    assert len(theirs) == len(trained)
    for name, value in adapter_tensors(trained).items():
        other = theirs[name.replace(".weight", ".default.weight")]
        mine = trained[name.removeprefix("base_model.model.").removesuffix(".weight")]
        assert mine.grad is not None
        assert other.grad is not None
        assert (mine.grad - other.grad).norm() <= 1e-5 * other.grad.norm()
        assert value.shape == other.shape


def test_bfloat16_trains_the_function_that_is_sampled_from(tiny_model: ModelFolder) -> None:
    """Blocks, embedding and head hold the bits of a model that was rounded as a whole; the masters stay float32."""
    model = load_model(str(tiny_model.path), dtype="float32", device="cpu")
    masters = Masters(model, dtype=torch.bfloat16, has_adapter=False)
    rounded = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.bfloat16)
    ids = torch.from_numpy(IDS)[None]

    hidden = model.hidden(ids)
    (hidden.float() @ masters.rounded(model.head).T).square().mean().backward()

    torch.testing.assert_close(hidden, rounded.model(input_ids=ids).last_hidden_state, rtol=0, atol=0)
    torch.testing.assert_close(masters.rounded(model.head), rounded.lm_head.weight.float(), rtol=0, atol=0)
    assert all(value.dtype == torch.float32 for value in masters.parameters.values())
    assert all(value.grad is not None and value.grad.dtype == torch.float32 for value in masters.parameters.values())


def test_bfloat16_gradients_are_close_to_float32(
    make: Callable[..., Engine], train_once: Callable[[Engine], None]
) -> None:
    """One tree, full weights: the direction of the gradient survives the rounding."""
    found = []
    for dtype in ("float32", "bfloat16"):
        engine = make(trainer_dtype=dtype, sampler_dtype=dtype)
        train_once(engine)
        gradients = engine.trainer.gradients()  # type: ignore[attr-defined]
        found.append(np.concatenate([gradients[name].ravel() for name in sorted(gradients)]).astype(np.float64))

    cosine = found[0] @ found[1] / np.sqrt((found[0] @ found[0]) * (found[1] @ found[1]))
    assert cosine > 0.99
