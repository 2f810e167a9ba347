"""Preferences between pairs: printed figures, the closed form of gradients, finite differences, splits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log1p, nan

import pytest
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives import PreferenceObjective, Terms

Differences = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def terms(
    logp: Tensor,
    *,
    pair: Sequence[int],
    side: Sequence[float],
    reference: Sequence[float] | None = None,
    weight: Sequence[float] | None = None,
) -> Terms:
    def made(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float64)

    count = torch.arange(len(pair))
    return Terms(
        logp_N=logp,
        behaviour_logp_N=made([nan] * len(pair)),
        advantage_N=made(side),
        weight_N=made(weight or [1.0] * len(pair)),
        turn_N=count,
        sequence_N=count,
        reference_logp_N=None if reference is None else made(reference),
        pair_N=torch.tensor(list(pair)),
    )


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


class TestPrintedFigures:
    """|a+| = 25 and |a-| = 100 with log-probabilities -20 and -60: beta .0008, margin .032, loss .677275."""

    def given(self) -> Terms:
        logp = torch.cat([torch.full((25,), -0.8), torch.full((100,), -0.6)]).double()
        return terms(logp, pair=[0] * 125, side=[1.0] * 25 + [-1.0] * 100)

    def test_the_preference(self) -> None:
        objective = PreferenceObjective(beta=0.008, reference=False, length_power=0.5)

        assert objective(self.given()).total.item() == pytest.approx(0.677275, abs=5e-7)

    def test_with_half_of_a_likelihood_loss_of_nine_tenths(self) -> None:
        """The expert's tokens at -0.9 each; the wrong side moves along, so that the margin stays .032 / .0008 = 40."""
        logp = torch.cat([torch.full((25,), -0.9), torch.full((100,), -0.625)]).double()
        given = terms(logp, pair=[0] * 125, side=[1.0] * 25 + [-1.0] * 100)
        objective = PreferenceObjective(beta=0.008, reference=False, length_power=0.5, likelihood=0.5)

        assert objective(given).total.item() == pytest.approx(1.127275, abs=5e-7)

    def test_at_margin_zero_it_is_log_two(self) -> None:
        given = terms(doubles(-1.0, -1.0), pair=[0, 0], side=[1.0, -1.0])

        found = PreferenceObjective(reference=False)(given).total.item()
        assert found == pytest.approx(0.693147, abs=5e-7)


def test_dpo_is_the_closed_form_and_so_is_its_gradient() -> None:
    """L = -log sigma(b m); the gradient at a preferred token is -b sigma(-b m), on the other side the opposite."""
    logp = doubles(-1.0, -0.5, -2.0, -0.25, -3.0)
    reference = [-1.5, -0.75, -1.0, -0.5, -2.5]
    pair, side = [0, 0, 0, 1, 1], [1.0, 1.0, -1.0, -1.0, 1.0]
    margins = [0.5 + 0.25 - (-1.0), -0.5 - 0.25]

    loss = PreferenceObjective(beta=0.3)(terms(logp, pair=pair, side=side, reference=reference, weight=[0.5] * 5))
    loss.total.backward()

    assert loss.total.item() == pytest.approx(sum(0.5 * log1p(exp(-0.3 * m)) for m in margins), abs=1e-12)
    expected = [-0.5 * s * 0.3 / (1 + exp(0.3 * margins[p])) for p, s in zip(pair, side, strict=True)]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(expected, abs=1e-12)
    assert (int(loss.stats["pairs"]), int(loss.stats["preferred_pairs"])) == (2, 1)
    assert float(loss.stats["margin_sum"]) == pytest.approx(sum(margins))


@pytest.mark.parametrize(
    "objective",
    [
        PreferenceObjective(),
        PreferenceObjective(beta=2.0, likelihood=0.7),
        PreferenceObjective(reference=False, length_power=0.5, likelihood=0.5, beta=0.9),
        PreferenceObjective(reference=False, preference=0.0, likelihood=1.0),
    ],
)
def test_gradients_equal_finite_differences(objective: PreferenceObjective, differences: Differences) -> None:
    def total(logp: Tensor) -> Tensor:
        reference = [-0.3, -1.0, -0.7, -0.2, -0.9, -1.1]
        given = terms(logp, pair=[0, 1, 0, 1, 1, 2], side=[1, -1, -1, 1, 1, 1], reference=reference, weight=[0.4] * 6)
        return objective(given).total

    logp = doubles(-0.1, -0.8, -1.9, -0.4, -2.2, -0.6)
    (found,) = torch.autograd.grad(total(logp), logp)

    torch.testing.assert_close(found, differences(total, logp.detach()), rtol=1e-6, atol=1e-9)


def test_a_pair_without_its_other_side_has_only_a_likelihood() -> None:
    given = terms(doubles(-1.0, -3.0), pair=[0, 0], side=[1.0, 1.0])

    assert PreferenceObjective(reference=False)(given).total.item() == 0.0
    found = PreferenceObjective(reference=False, likelihood=0.5)(given)
    assert found.total.item() == pytest.approx(0.5 * 2.0)
    assert int(found.stats["pairs"]) == 0


def test_pairs_add_up_in_any_split() -> None:
    values, reference, pair, side = [-1.0, -0.5, -2.0, -0.25], [-0.9] * 4, [0, 0, 1, 1], [1.0, -1.0, 1.0, -1.0]
    objective = PreferenceObjective(likelihood=0.3)
    whole = objective(terms(doubles(*values), pair=pair, side=side, reference=reference)).total.item()

    parts = [
        objective(
            terms(doubles(*values[at : at + 2]), pair=[0, 0], side=side[:2], reference=reference[:2])
        ).total.item()
        for at in (0, 2)
    ]

    assert whole == pytest.approx(sum(parts), abs=1e-12)


def test_padding_may_hold_anything() -> None:
    padded = terms(
        doubles(-1.0, nan, -2.0, nan),
        pair=[0, 0, 0, 1],
        side=[1.0, nan, -1.0, 1.0],
        reference=[-1.0, nan, -1.0, nan],
        weight=[1.0, 0.0, 1.0, 0.0],
    )
    plain = terms(doubles(-1.0, -2.0), pair=[0, 0], side=[1.0, -1.0], reference=[-1.0, -1.0])

    objective = PreferenceObjective(likelihood=0.1)
    assert objective(padded).total.item() == objective(plain).total.item()
    objective(padded).total.backward()
    assert padded.logp_N.grad is not None
    assert bool(torch.isfinite(padded.logp_N.grad).all())


def test_a_hopeless_margin_costs_its_size_and_not_infinity() -> None:
    given = terms(doubles(-1e4, -1.0), pair=[0, 0], side=[1.0, -1.0])

    assert PreferenceObjective(beta=1.0, reference=False)(given).total.item() == pytest.approx(1e4 - 1.0)


def test_what_is_missing_is_named() -> None:
    given = terms(doubles(-1.0, -1.0), pair=[0, 0], side=[1.0, -1.0])
    with pytest.raises(ArgumentError, match="no logprobs under one"):
        PreferenceObjective()(given)
    with pytest.raises(ArgumentError, match="needs pairs"):
        PreferenceObjective()(replace(given, pair_N=None))
    with pytest.raises(ArgumentError, match="beta must be finite and > 0"):
        PreferenceObjective(beta=0.0)
