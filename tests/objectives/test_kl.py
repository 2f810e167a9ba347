"""KL estimators against exact sums over a small vocabulary, values and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kifu.objectives import Estimator, kl_estimate

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
OTHER = torch.tensor([0.9, 0.1, -0.5, 0.2], dtype=torch.float64).log_softmax(-1)


def _expectation(estimator: Estimator) -> float:
    logp_V = LOGITS.log_softmax(-1)
    return float((logp_V.exp() * kl_estimate(logp_N=logp_V, other_logp_N=OTHER, estimator=estimator)).sum())


def _exact(logp_V: Tensor, other_V: Tensor) -> Tensor:
    return (logp_V.exp() * (logp_V - other_V)).sum()


def _gradient(function_value: Tensor, logits_V: Tensor) -> Tensor:
    (found_V,) = torch.autograd.grad(function_value, logits_V)
    return found_V


def test_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    """Their expectation over the vocabulary against KL(p || q)."""
    exact = float(_exact(LOGITS.log_softmax(-1), OTHER))
    assert _expectation("k1") == pytest.approx(exact, abs=1e-12)
    assert _expectation("k3") == pytest.approx(exact, abs=1e-12)
    assert abs(_expectation("k2") - exact) > 1e-2


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_expected_gradient_of_each_estimator_is_the_documented_one(estimator: Estimator) -> None:
    """Samples held fixed: 0 for k1, grad KL(p || q) for k2, grad KL(q || p) for k3."""
    logits_V = LOGITS.clone().requires_grad_()
    logp_V = logits_V.log_softmax(-1)
    sampled = (logp_V.exp().detach() * kl_estimate(logp_N=logp_V, other_logp_N=OTHER, estimator=estimator)).sum()
    found_V = _gradient(sampled, logits_V)
    again_V = logits_V.log_softmax(-1)
    expected_V = {
        "k1": torch.zeros(4, dtype=torch.float64),
        "k2": _gradient(_exact(again_V, OTHER), logits_V),
        "k3": _gradient(_exact(OTHER, logits_V.log_softmax(-1)), logits_V),
    }[estimator]
    torch.testing.assert_close(found_V, expected_V, rtol=1e-10, atol=1e-12)


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k2_and_k3_are_never_negative(logp: float, other: float) -> None:
    """On any pair of log-probabilities."""
    pair = torch.tensor([logp], dtype=torch.float64), torch.tensor([other], dtype=torch.float64)
    for estimator in ("k2", "k3"):
        assert float(kl_estimate(logp_N=pair[0], other_logp_N=pair[1], estimator=estimator)) >= -1e-15
