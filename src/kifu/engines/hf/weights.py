"""Weights between torch and plain arrays, and adapters merged into the weights they adapt."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kifu.errors import ModelError
from kifu.policy import Weights

PREFIX = "base_model.model."
"""What peft puts before a module's name."""


def as_array(tensor: Tensor) -> tuple[npt.NDArray[Any], bool]:
    """A read-only copy, and whether it holds bfloat16 bit patterns."""
    held = tensor.detach().to("cpu").contiguous()
    is_bfloat16 = held.dtype == torch.bfloat16
    array = (held.view(torch.uint16) if is_bfloat16 else held).numpy().copy()
    array.flags.writeable = False
    return array, is_bfloat16


def as_tensor(array: npt.NDArray[Any], *, is_bfloat16: bool) -> Tensor:
    """A tensor that owns its memory."""
    found = torch.from_numpy(np.array(array))
    return found.view(torch.bfloat16) if is_bfloat16 else found


def to_weights(tensors: Mapping[str, Tensor], *, version: int, is_adapter: bool) -> Weights:
    """Publishable copy of tensors."""
    arrays, halves = {}, set()
    for name, tensor in tensors.items():
        arrays[name], is_bfloat16 = as_array(tensor)
        if is_bfloat16:
            halves.add(name)
    return Weights(version=version, tensors=arrays, bfloat16=frozenset(halves), is_adapter=is_adapter)


def fill(parameters: Mapping[str, Tensor], weights: Weights) -> None:
    """Overwrite parameters, each in its own dtype.

    Raises:
        ModelError: names or shapes differ.
    """
    missing, odd = sorted(set(parameters) - set(weights.tensors)), sorted(set(weights.tensors) - set(parameters))
    if missing or odd:
        raise ModelError(
            f"weights of version {weights.version} do not fit the model: {len(missing)} parameters missing "
            f"{missing[:2]}, {len(odd)} unknown {odd[:2]}. They belong to another model, or to an adapter."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            found = as_tensor(weights.tensors[name], is_bfloat16=name in weights.bfloat16)
            if found.shape != parameter.shape:
                raise ModelError(f"`{name}`: shape {tuple(found.shape)}, expected {tuple(parameter.shape)}")
            parameter.copy_(found)


def merged(origin_OI: Tensor, *, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """``[O, I]`` W0 + scale * B A in float32: the one way it is computed, so that all who merge have equal bits."""
    return torch.addmm(origin_OI.float(), up, down, alpha=scale)


def merge(parameters: Mapping[str, Tensor], base: Mapping[str, Tensor], weights: Weights, *, scale: float) -> None:
    """Overwrite each adapted parameter W by W0 + scale * B A, computed in float32 and rounded once.

    Args:
        parameters: of the model to fill.
        base: unadapted weights W0, float32, by the same names.
        weights: an adapter under peft's names.
        scale: alpha / rank.

    Raises:
        ModelError: the adapter belongs to another model.
    """
    stems = sorted({name.rsplit(".lora_", 1)[0] for name in weights.tensors})
    with torch.no_grad():
        for stem in stems:
            target = f"{stem.removeprefix(PREFIX)}.weight"
            if target not in base or target not in parameters:
                raise ModelError(f"the adapter of version {weights.version} adapts `{target}`, which the model lacks")
            down, up = (_adapter_part(weights, f"{stem}.lora_{part}.weight") for part in ("A", "B"))
            origin = base[target]
            parameters[target].copy_(merged(origin, down=down.to(origin.device), up=up.to(origin.device), scale=scale))


def _adapter_part(weights: Weights, name: str) -> Tensor:
    if name not in weights.tensors:
        raise ModelError(f"the adapter of version {weights.version} lacks `{name}`")
    return as_tensor(weights.tensors[name], is_bfloat16=name in weights.bfloat16).float()
