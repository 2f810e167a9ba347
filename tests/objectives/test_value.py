"""Value regression against the formula written out and finite differences."""

from collections.abc import Callable
from math import nan

import pytest
import torch
from torch import Tensor

from kifu.objectives import ValueTerms, value_loss

VALUE, TARGET, OLD, WEIGHT = [0.2, 0.9, -0.5, 0.4], [1.0, 0.0, -0.45, 0.4], [0.1, 0.2, -0.1, 0.5], [0.5, 1.0, 2.0, 1.0]


def _terms(value_K: Tensor) -> ValueTerms:
    other = [torch.tensor(numbers, dtype=torch.float64) for numbers in (TARGET, OLD, WEIGHT)]
    return ValueTerms(value_K=value_K, target_K=other[0], old_value_K=other[1], weight_K=other[2])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_loss_is_the_written_out_sum(clip: float | None) -> None:
    """Half the weighted squared error; clipped, the worse of the two errors."""
    expected = 0.0
    for value, target, old, weight in zip(VALUE, TARGET, OLD, WEIGHT, strict=True):
        error = (value - target) ** 2
        if clip is not None:
            error = max(error, (old + min(max(value - old, -clip), clip) - target) ** 2)
        expected += weight * error / 2
    assert float(value_loss(_terms(torch.tensor(VALUE, dtype=torch.float64)), clip=clip)) == pytest.approx(expected)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_gradient_is_its_finite_difference(differences: Callable[..., Tensor], clip: float | None) -> None:
    """With and without clipping, on both sides of the bound."""
    value_K = torch.tensor(VALUE, dtype=torch.float64, requires_grad=True)
    value_loss(_terms(value_K), clip=clip).backward()
    assert value_K.grad is not None
    expected_K = differences(lambda at_K: value_loss(_terms(at_K), clip=clip), value_K.detach())
    torch.testing.assert_close(value_K.grad, expected_K, rtol=1e-6, atol=1e-8)


def test_padding_may_hold_nan() -> None:
    """A value of weight 0 is not looked at."""
    value_K = torch.tensor([0.5, nan], dtype=torch.float64, requires_grad=True)
    poison_K = torch.tensor([0.0, nan], dtype=torch.float64)
    weight_K = torch.tensor([1.0, 0.0], dtype=torch.float64)
    loss = value_loss(
        ValueTerms(value_K=value_K, target_K=poison_K, old_value_K=poison_K, weight_K=weight_K), clip=10.0
    )
    loss.backward()
    assert value_K.grad is not None
    assert (loss.item(), value_K.grad.tolist()) == (0.125, [0.5, 0.0])
