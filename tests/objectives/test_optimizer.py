"""The optimizer against torch's AdamW and formulas, and what it does when it must not move."""

from math import cos, inf, nan, pi, sqrt

import numpy as np
import pytest
import torch

from kifu.errors import ArgumentError
from kifu.objectives import Optimizer, gradient_norm, learning_rate
from kifu.policy import AdamW

SPEC = AdamW(learning_rate=0.1, betas=(0.8, 0.95), weight_decay=0.1, clip_norm=1.0, warmup_steps=2)


def _parameters() -> dict[str, torch.nn.Parameter]:
    make = torch.Generator().manual_seed(0)
    return {
        "b": torch.nn.Parameter(torch.randn(3, 2, generator=make)),
        "a": torch.nn.Parameter(torch.randn(4, generator=make)),
    }


def _give_gradients(parameters: dict[str, torch.nn.Parameter], seed: int, scale: float = 1.0) -> None:
    make = torch.Generator().manual_seed(seed)
    for name in sorted(parameters):
        parameters[name].grad = scale * torch.randn(parameters[name].shape, generator=make)


def _bits(parameters: dict[str, torch.nn.Parameter]) -> dict[str, bytes]:
    return {name: parameter.detach().numpy().tobytes() for name, parameter in parameters.items()}


def test_steps_are_adamw_s_written_out() -> None:
    """m, v, bias corrections, decoupled decay and clipping in numpy float64, warm-up included."""
    parameters = _parameters()
    optimizer = Optimizer(parameters, SPEC)
    weight = {name: p.detach().double().numpy().copy() for name, p in parameters.items()}
    m = {name: np.zeros_like(array) for name, array in weight.items()}
    v = {name: np.zeros_like(array) for name, array in weight.items()}
    for n in range(1, 5):
        _give_gradients(parameters, seed=n)
        gradient = {name: p.grad.double().numpy().copy() for name, p in parameters.items() if p.grad is not None}
        norm = sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        result = optimizer.step(loss=1.0)
        rate = 0.1 * min(1.0, n / 2)
        assert result.applied
        assert result.learning_rate == pytest.approx(rate)
        assert result.grad_norm == pytest.approx(norm, rel=1e-12)
        for name, g in gradient.items():
            g = g * min(1.0, 1.0 / norm)
            weight[name] *= 1 - rate * 0.1
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            weight[name] -= rate * (m[name] / (1 - 0.8**n)) / (np.sqrt(v[name] / (1 - 0.95**n)) + 1e-8)
    for name, parameter in parameters.items():
        np.testing.assert_allclose(parameter.detach().numpy(), weight[name], rtol=2e-6, atol=1e-6)
        assert parameter.grad is None


@pytest.mark.parametrize(
    ("gradient", "loss", "why"),
    [
        (nan, 1.0, "gradient norm is nan"),
        (inf, 1.0, "gradient norm is inf"),
        (1.0, nan, "the loss is nan"),
        (1.0, -inf, "the loss is -inf"),
        (0.0, 0.0, "no batch carried a gradient"),
        (None, None, "no batch carried a gradient"),
    ],
)
@pytest.mark.parametrize("rate", [1e-3, 1e6])
def test_a_refused_step_moves_nothing_at_any_rate(
    gradient: float | None, loss: float | None, why: str, rate: float
) -> None:
    """Weights, moments, decay and schedule are bit for bit those of a run in which the step never was."""
    spec = AdamW(learning_rate=rate, weight_decay=0.5, warmup_steps=10)
    disturbed, calm = _parameters(), _parameters()
    optimizers = Optimizer(disturbed, spec), Optimizer(calm, spec)
    for parameters, optimizer in zip((disturbed, calm), optimizers, strict=True):
        _give_gradients(parameters, seed=1)
        assert optimizer.step(loss=0.5).applied
    before = _bits(disturbed)
    if gradient is not None:
        _give_gradients(disturbed, seed=2)
        grad_a, grad_b = disturbed["a"].grad, disturbed["b"].grad
        assert grad_a is not None
        assert grad_b is not None
        grad_a.mul_(0.0 if gradient == 0.0 else 1.0)
        grad_b.mul_(0.0 if gradient == 0.0 else 1.0)
        if gradient != 1.0 and gradient != 0.0:
            grad_b[0, 0] = gradient
    result = optimizers[0].step(loss=loss)
    assert not result.applied
    assert why in result.why
    assert _bits(disturbed) == before
    assert all(parameter.grad is None for parameter in disturbed.values())
    for parameters, optimizer in zip((disturbed, calm), optimizers, strict=True):
        _give_gradients(parameters, seed=3)
        assert optimizer.step(loss=0.5).applied
    assert _bits(disturbed) == _bits(calm)
    assert optimizers[0].applied_steps == 2


def test_going_on_from_a_saved_state_is_bit_exact() -> None:
    """Six steps in one go against three, a round trip through numpy and three more; one parameter joins late."""
    straight, resumed = _parameters(), _parameters()
    one, other = Optimizer(straight, SPEC), Optimizer(resumed, SPEC)
    for n in range(6):
        if n == 3:
            state = other.state()
            assert all(isinstance(array, np.ndarray) for array in state["exp_avg"].values())
            other = Optimizer(resumed, SPEC)
            other.load_state(state)
        for parameters, optimizer in ((straight, one), (resumed, other)):
            _give_gradients(parameters, seed=n)
            if n < 2:
                parameters["a"].grad = None
            optimizer.step()
    assert _bits(straight) == _bits(resumed)
    assert one.applied_steps == other.applied_steps == 6


def test_a_saved_state_does_not_change_afterwards() -> None:
    """Its arrays are copies."""
    parameters = _parameters()
    optimizer = Optimizer(parameters, SPEC)
    _give_gradients(parameters, seed=0)
    optimizer.step()
    state = optimizer.state()
    kept = state["exp_avg"]["a"].copy()
    _give_gradients(parameters, seed=1)
    optimizer.step()
    np.testing.assert_array_equal(state["exp_avg"]["a"], kept)


def test_a_state_of_another_model_is_refused() -> None:
    """The stranger is named."""
    parameters = _parameters()
    optimizer = Optimizer(parameters, SPEC)
    _give_gradients(parameters, seed=0)
    optimizer.step()
    with pytest.raises(ArgumentError, match="`a`"):
        Optimizer({"b": torch.nn.Parameter(torch.zeros(3, 2))}, SPEC).load_state(optimizer.state())


@pytest.mark.parametrize("clip", [None, 1e-3, 1e9])
def test_clipping_scales_the_whole_gradient(clip: float | None) -> None:
    """Adam forgets scale, but its first moment does not: after one step it is 0.2 times the clipped gradient."""
    parameters = _parameters()
    optimizer = Optimizer(parameters, AdamW(betas=(0.8, 0.9), clip_norm=clip))
    _give_gradients(parameters, seed=0)
    grad = parameters["a"].grad
    assert grad is not None
    original, norm = grad.clone(), gradient_norm(parameters)
    optimizer.step()
    factor = 1.0 if clip is None else min(1.0, clip / norm)
    np.testing.assert_allclose(optimizer.state()["exp_avg"]["a"], 0.2 * factor * original.numpy(), rtol=1e-5)


def test_the_norm_is_summed_in_float64() -> None:
    """A million gradients of 1e-4 beside one of 1000: float32 squares would lose them."""
    parameter = torch.nn.Parameter(torch.zeros(1_000_001))
    parameter.grad = torch.full((1_000_001,), 0.01)
    parameter.grad[0] = 1000.0
    assert gradient_norm({"w": parameter}) == pytest.approx(sqrt(1e6 + 1e6 * float(np.float32(0.01)) ** 2), rel=1e-12)


@pytest.mark.parametrize("applied", range(12))
def test_schedules_fall_from_the_peak_to_zero(applied: int) -> None:
    """Warm-up 2 of 10 steps, then constant, linear or half a cosine."""
    warm = (applied + 1) / 2 if applied < 2 else None
    x = min(1.0, (applied - 2) / 8)
    expected = {
        "constant": 1.0 if warm is None else warm,
        "linear": 1 - x if warm is None else warm,
        "cosine": (1 + cos(pi * x)) / 2 if warm is None else warm,
    }
    found = {
        name: learning_rate(AdamW(learning_rate=3.0, warmup_steps=2, schedule=name, total_steps=10), applied=applied)
        for name in ("constant", "linear", "cosine")
    }
    assert found == pytest.approx({name: 3.0 * factor for name, factor in expected.items()})


def test_settings_that_cannot_be_meant_are_refused() -> None:
    """A schedule without an end, nothing to train, half-precision masters."""
    with pytest.raises(ArgumentError, match="total_steps"):
        Optimizer(_parameters(), AdamW(schedule="cosine"))
    with pytest.raises(ArgumentError, match="at least one"):
        Optimizer({}, AdamW())
    with pytest.raises(ArgumentError, match="bfloat16"):
        Optimizer({"w": torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))}, AdamW())
