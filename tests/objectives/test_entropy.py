"""Entropy with truncated supports, and its bonus."""

from math import inf, log, nan

import pytest
import torch

from kifu.objectives import entropy_bonus, entropy_of


def test_tokens_outside_the_support_add_nothing() -> None:
    """Two equal tokens of three: log 2, with a finite gradient."""
    logits_NV = torch.tensor([[1.0, 1.0, 5.0]], dtype=torch.float64, requires_grad=True)
    kept_NV = torch.tensor([[True, True, False]])
    found_N = entropy_of(logits_NV.masked_fill(~kept_NV, -inf).log_softmax(-1))
    found_N.sum().backward()
    assert float(found_N.detach()) == pytest.approx(log(2))
    assert logits_NV.grad is not None
    assert logits_NV.grad.tolist()[0] == pytest.approx([0.0, 0.0, 0.0], abs=1e-15)


def test_the_gradient_of_the_entropy_is_its_finite_difference() -> None:
    """Checked by torch's own numerical comparison."""
    logits_NV = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.1, 0.2, -3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: entropy_of(z.log_softmax(-1)), (logits_NV,))


def test_the_entropies_of_the_source_are_reproduced() -> None:
    """Logits 2, 1, 0, -1 at temperatures 0.5, 1, 2."""
    logits_NV = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    for temperature, expected in ((0.5, 0.455429), (1.0, 0.947537), (2.0, 1.245050)):
        assert float(entropy_of((logits_NV / temperature).log_softmax(-1))) == pytest.approx(expected, abs=5e-7)


def test_the_bonus_is_minus_the_weighted_sum_and_ignores_padding() -> None:
    """Weight 0 may hold nan."""
    entropy_N = torch.tensor([1.0, 2.0, nan], dtype=torch.float64, requires_grad=True)
    loss = entropy_bonus(entropy_N=entropy_N, weight_N=torch.tensor([0.5, 0.25, 0.0], dtype=torch.float64))
    loss.backward()
    assert loss.item() == -1.0
    assert entropy_N.grad is not None
    assert entropy_N.grad.tolist() == [-0.5, -0.25, 0.0]
