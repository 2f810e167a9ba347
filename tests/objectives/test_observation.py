"""The next-observation loss: its own name, its own denominator."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives import EntropyBonus, LikelihoodObjective, ObservedTerms, PolicyObjective, Terms, WithObservations


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def terms(logp: Tensor, weight: float, observed: ObservedTerms | None) -> Terms:
    count = torch.arange(logp.numel())
    plain = torch.zeros_like(logp.detach())
    return Terms(
        logp_N=logp,
        behaviour_logp_N=plain,
        advantage_N=plain + 1.0,
        weight_N=plain + weight,
        turn_N=count,
        sequence_N=count,
        observed=observed,
    )


def test_the_printed_three_components() -> None:
    """Losses 1, 2, 3, 2 of sampled tokens and 3, 5 of observations with coefficient .1: 8 / 4 + .8 / 2 = 2.4."""
    seen = ObservedTerms(logp_J=doubles(-3.0, -5.0), weight_J=torch.full((2,), 0.5, dtype=torch.float64))
    given = terms(doubles(-1.0, -2.0, -3.0, -2.0), 0.25, seen)

    loss = WithObservations(inner=LikelihoodObjective(), coefficient=0.1)(given)
    loss.total.backward()

    assert loss.total.item() == pytest.approx(2.4, abs=1e-12)
    assert float(loss.stats["loss_likelihood"]) == pytest.approx(2.0)
    assert float(loss.stats["loss_observation"]) == pytest.approx(0.4)
    assert (int(loss.stats["tokens"]), int(loss.stats["observation_tokens"])) == (4, 2)
    assert seen.logp_J.grad is not None
    assert seen.logp_J.grad.tolist() == pytest.approx([-0.05, -0.05])
    assert given.logp_N.grad is not None
    assert given.logp_N.grad.tolist() == [-0.25] * 4


def test_without_observations_it_is_the_inner_loss() -> None:
    given = terms(doubles(-1.0, -2.0), 0.5, None)
    inner = PolicyObjective()

    assert WithObservations(inner=inner)(given).total.item() == inner(given).total.item()
    assert set(WithObservations(inner=inner)(given).stats) == set(inner(given).stats)


def test_masked_observations_may_hold_anything() -> None:
    logp, weight = doubles(-3.0, nan, -inf), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    given = terms(doubles(-1.0), 1.0, ObservedTerms(logp_J=logp, weight_J=weight))

    loss = WithObservations(inner=LikelihoodObjective(), coefficient=1.0)(given)
    loss.total.backward()

    assert loss.total.item() == pytest.approx(4.0)
    assert logp.grad is not None
    assert logp.grad.tolist() == [-1.0, 0.0, 0.0]


def test_it_asks_for_what_the_inner_loss_asks_for() -> None:
    assert WithObservations(inner=PolicyObjective(entropy=EntropyBonus(coefficient=0.1))).needs_entropy
    assert not WithObservations(inner=PolicyObjective()).needs_entropy


@pytest.mark.parametrize("coefficient", [0.0, -1.0, nan, inf])
def test_a_coefficient_that_leaves_nothing_is_refused(coefficient: float) -> None:
    with pytest.raises(ArgumentError, match="leave the loss out"):
        replace(WithObservations(inner=PolicyObjective()), coefficient=coefficient)
