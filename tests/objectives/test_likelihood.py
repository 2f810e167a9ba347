"""Supervised fine-tuning: a weighted sum of surprises, nothing else."""

from math import nan

import pytest
import torch

from kifu.objectives import LikelihoodObjective, Terms


def test_only_log_probabilities_and_weights_are_looked_at() -> None:
    """Demonstrations have neither behaviour log-probabilities nor advantages; both are nan here."""
    logp_N = torch.tensor([-1.0, -3.0, nan], dtype=torch.float64, requires_grad=True)
    nothing_N = torch.full((3,), nan, dtype=torch.float64)
    index_N = torch.zeros(3, dtype=torch.int64)
    objective = LikelihoodObjective()
    loss = objective(
        Terms(
            logp_N=logp_N,
            behaviour_logp_N=nothing_N,
            advantage_N=nothing_N,
            weight_N=torch.tensor([0.5, 0.25, 0.0], dtype=torch.float64),
            turn_N=index_N,
            sequence_N=index_N,
        )
    )
    loss.total.backward()
    assert logp_N.grad is not None
    assert logp_N.grad.tolist() == [-0.5, -0.25, 0.0]
    assert loss.total.item() == pytest.approx(1.25)
    assert {name: float(value) for name, value in loss.stats.items()} == {
        "tokens": 2.0,
        "nll_sum": 4.0,
        "loss_likelihood": 1.25,
    }
    assert not objective.needs_entropy
