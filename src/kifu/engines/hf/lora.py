"""A low-rank adapter on every linear layer of a model's blocks (Hu et al., 2021), through peft."""

from collections.abc import Mapping

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from kifu.engines.hf.loading import CausalModel
from kifu.engines.hf.weights import PREFIX
from kifu.errors import ModelError
from kifu.policy import LoraWeights

ADAPTER = "default"


def add_adapter(model: CausalModel, spec: LoraWeights, *, seed: int) -> dict[str, Tensor]:
    """Freeze the model, wrap its linear layers, and return the frozen weights that are adapted, by their own names.

    Args:
        model: changed in place.
        spec: rank and alpha; the update is alpha / rank times B A, with B zero at first.
        seed: of the random A.

    Raises:
        ModelError: the blocks have no linear layers.
    """
    names = [name for name, module in model.decoder.named_modules() if isinstance(module, nn.Linear)]
    prefix = next(name for name, module in model.whole.named_modules() if module is model.decoder)
    targets = [f"{prefix}.{name}" for name in names]
    if not targets:
        raise ModelError(f"model at `{model.folder}` has no linear layers to adapt; train it in full instead")
    config = LoraConfig(r=spec.rank, target_modules=targets, lora_dropout=0.0, bias="none")
    config.lora_alpha = spec.alpha  # type: ignore[assignment]  # only ever divided by the rank
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model.whole, ADAPTER)
    found: dict[str, Tensor] = {}
    for target in targets:
        layer = model.whole.get_submodule(target).get_submodule("base_layer")
        found[f"{target}.weight"] = layer.get_parameter("weight").detach()
    return found


def adapter_tensors(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's tensors under peft's names for files."""
    return {
        PREFIX + name.replace(f".{ADAPTER}.weight", ".weight"): tensor
        for name, tensor in parameters.items()
        if ".lora_A." in name or ".lora_B." in name
    }
