"""The weighted likelihood against loops and finite differences."""

from math import exp, inf, nan

import pytest
import torch

from kifu.errors import ArgumentError
from kifu.objectives import LikelihoodObjective, Terms, WeightedLikelihood


def terms(logp: list[float], advantages: list[float], weights: list[float]) -> Terms:
    def made(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    count = torch.arange(len(logp))
    return Terms(
        logp_N=made(logp).requires_grad_(),
        behaviour_logp_N=made([nan] * len(logp)),
        advantage_N=made(advantages),
        weight_N=made(weights),
        turn_N=count,
        sequence_N=count,
    )


def test_loss_and_gradient_are_those_of_the_sum_written_out() -> None:
    given = terms([-1.0, -2.0, -0.5], [0.3, -1.0, 9.0], [0.5, 0.25, 0.25])
    factors = [exp(0.3 / 2), exp(-1.0 / 2), 20.0]

    loss = WeightedLikelihood(temperature=2.0, cap=20.0)(given)
    loss.total.backward()

    assert loss.total.item() == pytest.approx(
        0.5 * factors[0] * 1.0 + 0.25 * factors[1] * 2.0 + 0.25 * factors[2] * 0.5, abs=1e-12
    )
    assert given.logp_N.grad is not None
    assert given.logp_N.grad.tolist() == pytest.approx([-0.5 * factors[0], -0.25 * factors[1], -0.25 * factors[2]])
    assert int(loss.stats["capped_tokens"]) == 1


def test_an_advantage_of_zero_everywhere_is_imitation() -> None:
    given = terms([-1.0, -2.0], [0.0, 0.0], [0.5, 0.5])

    assert WeightedLikelihood()(given).total.item() == LikelihoodObjective()(given).total.item()


def test_padding_may_hold_anything_and_a_huge_advantage_stays_finite() -> None:
    given = terms([-1.0, nan, -1.0], [1e6, inf, -1e6], [1.0, 0.0, 1.0])

    loss = WeightedLikelihood(temperature=0.01)(given)
    loss.total.backward()

    assert loss.total.item() == pytest.approx(20.0)
    assert given.logp_N.grad is not None
    assert given.logp_N.grad.tolist() == pytest.approx([-20.0, 0.0, 0.0])


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": inf}, {"cap": 0.0}, {"cap": nan}])
def test_temperature_and_cap_are_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="finite and > 0"):
        WeightedLikelihood(**wrong)
