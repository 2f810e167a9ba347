"""The optimizer every engine uses: AdamW that either takes a whole step or leaves everything as it is."""

from collections.abc import Mapping
from math import cos, isfinite, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.policy import AdamW, StepResult

_MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(spec: AdamW, *, applied: int) -> float:
    """The rate of the next step.

        warm-up   peak * (n + 1) / warmup_steps                   n = steps applied so far, n < warmup_steps
        then      peak * 1 | 1 - x | (1 + cos(pi x)) / 2          x = (n - warmup) / (total - warmup), at most 1

    Args:
        spec: peak, warm-up, schedule and total.
        applied: optimizer steps that moved the weights; steps that were refused do not count.
    """
    if spec.schedule != "constant" and spec.total_steps is None:
        raise ArgumentError(f"the {spec.schedule} schedule ends somewhere: set `total_steps`")
    if applied < spec.warmup_steps:
        return spec.learning_rate * (applied + 1) / spec.warmup_steps
    if spec.schedule == "constant" or spec.total_steps is None:
        return spec.learning_rate
    x = min(1.0, (applied - spec.warmup_steps) / max(spec.total_steps - spec.warmup_steps, 1))
    return spec.learning_rate * (1.0 - x if spec.schedule == "linear" else (1.0 + cos(pi * x)) / 2.0)


def gradient_norm(parameters: Mapping[str, Tensor]) -> float:
    """Euclidean norm of all gradients, squares summed in float64 in the order of the names; 0 without any gradient."""
    total = 0.0
    for name in sorted(parameters):
        gradient = parameters[name].grad
        if gradient is not None:
            total += _sum_of_squares(gradient)
    return sqrt(total) if isfinite(total) else total


class Optimizer:
    """AdamW over named parameters.

    A step is refused, and then weights, moments, decay and schedule stay exactly as they were, when the loss or the
    gradient is not finite, or when there is no gradient at all: a batch of groups that compare nothing moves nothing at
    any learning rate.

    Args:
        parameters: the trainable parameters by name, float32 or float64.
        spec: rates, decay, clipping, schedule.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], spec: AdamW) -> None:
        if not parameters:
            raise ArgumentError("an optimizer needs at least one trainable parameter")
        for name, parameter in parameters.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise ArgumentError(f"parameter `{name}` is {parameter.dtype}; train float32 master weights instead")
        learning_rate(spec, applied=0)
        self._parameters = {name: parameters[name] for name in sorted(parameters)}
        self._spec = spec
        self._adam = torch.optim.AdamW(
            list(self._parameters.values()),
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            foreach=False,
        )
        self.applied_steps = 0

    def step(self, *, loss: float | None = None) -> StepResult:
        """Clip, step and clear the gradients, or refuse and clear them.

        Clipping multiplies every gradient by ``clip_norm / norm`` when the norm is larger.

        Args:
            loss: the summed loss behind the gradients, refused when not finite; None when nobody knows it.
        """
        norm = gradient_norm(self._parameters)
        rate = learning_rate(self._spec, applied=self.applied_steps)
        why = _why_not(norm, loss)
        if not why:
            self._clip(norm)
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
            self.applied_steps += 1
        self._adam.zero_grad(set_to_none=True)
        return StepResult(applied=not why, grad_norm=norm, learning_rate=rate, why=why)

    def state(self) -> dict[str, Any]:
        """Moments and schedule position, without the weights; arrays are copies."""
        moments: dict[str, dict[str, np.ndarray]] = {moment: {} for moment in _MOMENTS}
        steps: dict[str, int] = {}
        for name, parameter in self._parameters.items():
            found = self._adam.state.get(parameter)
            if found:
                steps[name] = int(found["step"])
                for moment in _MOMENTS:
                    moments[moment][name] = found[moment].detach().cpu().numpy().copy()
        return {"applied_steps": self.applied_steps, "steps": steps, **moments}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, bit for bit.

        Raises:
            ArgumentError: moments of other parameters, or of other shapes.
        """
        for moment in _MOMENTS:
            for name, array in state[moment].items():
                if name not in self._parameters or tuple(array.shape) != tuple(self._parameters[name].shape):
                    raise ArgumentError(f"the state holds `{name}` of shape {array.shape}, which is not trained here")
        self._adam.state.clear()
        for name, step in state["steps"].items():
            parameter = self._parameters[name]
            self._adam.state[parameter] = {
                "step": torch.tensor(float(step)),
                **{
                    moment: torch.tensor(state[moment][name], dtype=parameter.dtype, device=parameter.device)
                    for moment in _MOMENTS
                },
            }
        self.applied_steps = int(state["applied_steps"])

    def _clip(self, norm: float) -> None:
        limit = self._spec.clip_norm
        if limit is None or norm <= limit:
            return
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(limit / norm)


def _why_not(norm: float, loss: float | None) -> str:
    if loss is not None and not isfinite(loss):
        return f"the loss is {loss}"
    if not isfinite(norm):
        return f"the gradient norm is {norm}"
    if norm == 0.0:
        return "no batch carried a gradient"
    return ""


def _sum_of_squares(gradient: Tensor) -> float:
    flat = gradient.detach().reshape(-1)
    if flat.device.type == "cuda":
        return float(sum(part.double().square().sum().item() for part in flat.split(1 << 22)))
    array = flat.cpu().numpy()  # the other accelerators have no float64
    return float(np.einsum("i,i->", array, array, dtype=np.float64))
