"""Weights of the actor-critic as plain arrays, and back."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kifu.engines.recurrent.model import ActorCritic
from kifu.errors import EngineFailure
from kifu.policy import Weights


def read_tensors(model: ActorCritic) -> dict[str, npt.NDArray[Any]]:
    """Read-only copies of all parameters."""
    found = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    for array in found.values():
        array.flags.writeable = False
    return found


def load_tensors(model: ActorCritic, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Overwrite all parameters.

    Raises:
        EngineFailure: names or shapes of another model.
    """
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: tuple(array.shape) for name, array in tensors.items()}
    if found != expected:
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise EngineFailure(
            f"weights of another model: `{different[0]}` has shape {found.get(different[0])}, expected "
            f"{expected.get(different[0])}. Check vocabulary, `hidden` and `kind`."
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(tensors[name])))


def load_weights(model: ActorCritic, weights: Weights) -> None:
    """Take a published version."""
    if weights.is_adapter or weights.bfloat16:
        raise EngineFailure(f"version {weights.version} is an adapter or bfloat16; the recurrent engine takes neither")
    load_tensors(model, dict(weights.tensors))
