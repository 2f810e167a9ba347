"""A low-rank adapter on every linear layer of a model's blocks (Hu et al., 2021).

The forward multiplies by the merged weight W = W0 + scale * B A, rounded once to the dtype that is computed in: the
sampler holds the same W, so a policy that was not updated has the same probabilities on both sides, and the layer costs
what a plain one costs. The gradient of A and B is that of the unmerged form x W0^T + scale * (x A^T) B^T.

Axes: ``R`` rows, ``I`` inputs, ``O`` outputs, ``r`` rank.
"""

from collections.abc import Iterator, Mapping
from math import sqrt

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from kifu.engines.hf.loading import CausalModel
from kifu.engines.hf.weights import PREFIX, merged
from kifu.errors import ModelError
from kifu.policy import LoraWeights

DOWN, UP = "lora_A", "lora_B"
"""Names of the two factors, as adapter files have them."""


class AdaptedLinear(nn.Module):
    """Stands for a linear layer whose weight is frozen.

    Args:
        base: the layer; its weight stays as it is, in float32.
        rank: r.
        scale: alpha / rank.
        dtype: of the merged weight.
    """

    def __init__(self, base: nn.Linear, *, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.origin_OI = base.weight.detach()
        self.bias: nn.Parameter | None = base.bias
        self.scale = scale
        self.dtype = dtype
        device = self.origin_OI.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_A, a=sqrt(5))
        self._merged_OI: Tensor | None = None

    def refresh(self) -> None:
        """The factors have changed: merge them again before the next forward."""
        self._merged_OI = None

    def forward(self, input_RI: Tensor) -> Tensor:
        """``[..., O]``."""
        if self._merged_OI is None:
            with torch.no_grad():
                wide_OI = merged(self.origin_OI, down=self.lora_A, up=self.lora_B, scale=self.scale)
                self._merged_OI = wide_OI.to(self.dtype)
        found: Tensor = _Product.apply(  # type: ignore[no-untyped-call]  # torch has no type for it
            input_RI, self._merged_OI, self.lora_A, self.lora_B, self.scale
        )
        return found if self.bias is None else found + self.bias


class _Saved(FunctionCtx):
    """What the forward leaves to the backward."""

    scale: float
    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]


class _Product(torch.autograd.Function):
    """Input times the merged weight; the merged weight itself has no gradient."""

    @staticmethod
    def forward(
        ctx: _Saved, input_RI: Tensor, merged_OI: Tensor, down_rI: Tensor, up_Or: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(input_RI, merged_OI, down_rI, up_Or)
        ctx.scale = scale
        return functional.linear(input_RI, merged_OI)

    @staticmethod
    def backward(ctx: _Saved, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_RI, merged_OI, down_rI, up_Or = ctx.saved_tensors
        grad_RO = grads[0].reshape(-1, merged_OI.shape[0])
        rows_RI = input_RI.reshape(-1, merged_OI.shape[1])
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = (grad_RO @ merged_OI).view(input_RI.shape)
        low_Rr = rows_RI @ down_rI.to(rows_RI.dtype).T
        grad_low_Rr = grad_RO @ up_Or.to(grad_RO.dtype)
        grad_down = (grad_low_Rr.T @ rows_RI).to(down_rI.dtype).mul_(ctx.scale)
        grad_up = (grad_RO.T @ low_Rr).to(up_Or.dtype).mul_(ctx.scale)
        return grad_input, None, grad_down, grad_up, None


def add_adapter(model: CausalModel, spec: LoraWeights, *, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Freeze the model, put an `AdaptedLinear` in place of every linear layer of its blocks.

    Args:
        model: changed in place.
        spec: rank and alpha; the update is alpha / rank times B A, with B zero at first.
        seed: of the random A (Kaiming uniform, as peft has it).
        dtype: what the layers compute in.

    Returns:
        The frozen float32 weights that are adapted, by their own names.

    Raises:
        ModelError: the blocks have no linear layers.
    """
    model.whole.requires_grad_(False)
    prefix = next(name for name, module in model.whole.named_modules() if module is model.decoder)
    names = [name for name, module in model.decoder.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise ModelError(f"model at `{model.folder}` has no linear layers to adapt; train it in full instead")
    found: dict[str, Tensor] = {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name in names:
            base = model.decoder.get_submodule(name)
            assert isinstance(base, nn.Linear)
            layer = AdaptedLinear(base, rank=spec.rank, scale=spec.alpha / spec.rank, dtype=dtype)
            model.decoder.set_submodule(name, layer)
            found[f"{prefix}.{name}.weight"] = layer.origin_OI
    return found


def refresh_adapter(model: CausalModel) -> None:
    """The adapter's factors have changed: every layer merges them again."""
    for layer in _layers(model):
        layer.refresh()


def _layers(model: CausalModel) -> Iterator[AdaptedLinear]:
    return (module for module in model.decoder.modules() if isinstance(module, AdaptedLinear))


def adapter_tensors(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's tensors under the names peft's files have."""
    return {
        f"{PREFIX}{name}.weight": tensor for name, tensor in parameters.items() if name.endswith((f".{DOWN}", f".{UP}"))
    }
