"""Float32 master weights of a model that computes in bfloat16.

The blocks hold the masters rounded, as the sampler does; embedding and head stay float32 and are rounded where they are
used, because their gradients are sums over many tokens. So trainer and sampler compute the same function of the same
bits, and what differs is the order of their sums.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kifu.engines.hf.loading import CausalModel
from kifu.errors import ModelError


class Masters:
    """What is trained, and the working copies that follow it.

    Args:
        model: float32; with ``dtype`` bfloat16 its blocks are rounded in place.
        dtype: what the model computes in.
        has_adapter: whether what is trained are the factors of an adapter, which are used as they are.
    """

    def __init__(self, model: CausalModel, *, dtype: torch.dtype, has_adapter: bool) -> None:
        self.dtype = dtype
        trained = {name: value for name, value in model.parameters().items() if value.requires_grad}
        self.parameters: dict[str, nn.Parameter] = dict(trained)
        """Float32, by the model's own names; gradients are theirs."""
        self._working: dict[str, nn.Parameter] = {}
        if dtype == torch.float32:
            return
        embedding = model.whole.get_input_embeddings()
        if not isinstance(embedding, nn.Embedding):
            raise ModelError(f"model at `{model.folder}` has no plain embedding; train it in float32")
        embedding.register_forward_hook(lambda module, inputs, output: output.to(dtype))
        wide = {id(embedding.weight), id(model.head)}
        for name, value in model.parameters().items():
            if id(value) in wide or (has_adapter and name in trained):
                continue
            if name in trained:
                master = nn.Parameter(value.detach().clone())
                self.parameters[name] = master
                self._working[name] = value
                value.register_post_accumulate_grad_hook(_handing_over_to(master))
            value.data = value.data.to(dtype)

    def refresh(self) -> None:
        """The masters have changed: round them into the working copies."""
        with torch.no_grad():
            for name, value in self._working.items():
                value.copy_(self.parameters[name])

    def rounded(self, weight: Tensor) -> Tensor:
        """A float32 tensor with the values its rounded copy has; the gradient passes as if nothing were rounded."""
        if self.dtype == torch.float32:
            return weight
        found: Tensor = _Rounded.apply(weight, self.dtype)  # type: ignore[no-untyped-call]  # torch has no type for it
        return found


def _handing_over_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    def hand_over(working: Tensor) -> None:
        assert working.grad is not None
        if master.grad is None:
            master.grad = working.grad.float()
        else:
            master.grad.add_(working.grad)
        working.grad = None

    return hand_over


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, weight: Tensor, dtype: torch.dtype) -> Tensor:
        del ctx
        return weight.to(dtype).float()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grads[0], None
