"""The composed objective: its parts, its statistics, what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives import (
    ClippedRatio,
    EntropyBonus,
    KlPenalty,
    PolicyObjective,
    ScoreFunction,
    Terms,
    TokenRatio,
    ValueRegression,
    ValueTerms,
    clipped_surrogate,
    entropy_bonus,
    merge_stats,
    segment_log_ratio,
    value_loss,
)

FULL = PolicyObjective(
    surrogate=ClippedRatio(level=TokenRatio(), low=0.1, high=0.1),
    entropy=EntropyBonus(coefficient=0.01),
    value=ValueRegression(coefficient=0.5),
    kl=KlPenalty(coefficient=0.1),
)


def _tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _terms() -> Terms:
    return Terms(
        logp_N=_tensor(-0.5, -1.0, -2.0).requires_grad_(),
        behaviour_logp_N=_tensor(-1.0, -1.0, -1.8),
        advantage_N=_tensor(1.0, 1.0, -1.0),
        weight_N=_tensor(0.25, 0.25, 0.5),
        turn_N=torch.tensor([0, 0, 1]),
        sequence_N=torch.tensor([0, 0, 1]),
        entropy_N=_tensor(0.3, 0.6, 0.9).requires_grad_(),
        reference_logp_N=_tensor(-0.7, -1.1, -1.5),
        values=ValueTerms(
            value_K=_tensor(0.2, 0.4).requires_grad_(),
            target_K=_tensor(1.0, 0.0),
            old_value_K=_tensor(0.2, 0.4),
            weight_K=_tensor(0.5, 0.5),
        ),
    )


def test_the_total_is_the_sum_of_its_parts_with_their_coefficients() -> None:
    """Parts computed one by one from the pure functions; the penalty from its formula."""
    terms = _terms()
    assert terms.entropy_N is not None
    assert terms.values is not None
    policy, _ = clipped_surrogate(
        log_ratio_N=segment_log_ratio(terms, TokenRatio()),
        advantage_N=terms.advantage_N,
        weight_N=terms.weight_N,
        low=0.1,
        high=0.1,
    )
    gaps = [-0.7 + 0.5, -1.1 + 1.0, -1.5 + 2.0]
    penalty = sum(w * (exp(gap) - 1 - gap) for w, gap in zip([0.25, 0.25, 0.5], gaps, strict=True))
    expected = (
        policy.item()
        + 0.01 * entropy_bonus(entropy_N=terms.entropy_N, weight_N=terms.weight_N).item()
        + 0.5 * value_loss(terms.values).item()
        + 0.1 * penalty
    )
    found = FULL(terms)
    assert found.total.item() == pytest.approx(expected)
    parts = {name: float(value) for name, value in found.stats.items() if name.startswith("loss_")}
    assert set(parts) == {"loss_policy", "loss_entropy", "loss_value", "loss_kl"}
    assert sum(parts.values()) == pytest.approx(expected)


def test_statistics_are_the_written_out_sums() -> None:
    """Log-ratios .5, 0, -.2 under bounds .9 and 1.1: the first and the last token are bounded."""
    stats = {name: float(value) for name, value in FULL(_terms()).stats.items()}
    ratios = [exp(0.5), 1.0, exp(-0.2)]
    assert stats["tokens"] == 3
    assert stats["clipped_tokens"] == 2
    assert stats["ratio_sum"] == pytest.approx(sum(ratios))
    assert stats["kl_behaviour_k3_sum"] == pytest.approx(sum(r - 1 for r in ratios) - 0.3)
    assert (stats["log_ratio_min"], stats["log_ratio_max"]) == pytest.approx((-0.2, 0.5))
    assert stats["entropy_sum"] == pytest.approx(1.8)
    assert (stats["entropy_tokens"], stats["values"]) == (3, 2)


def test_every_gradient_of_the_whole_is_its_finite_difference(differences: Callable[..., Tensor]) -> None:
    """Through log-probabilities, entropies and values at once."""
    terms = _terms()
    assert terms.entropy_N is not None
    assert terms.values is not None
    FULL(terms).total.backward()

    def with_logp(at: Tensor) -> Tensor:
        return FULL(replace(terms, logp_N=at)).total

    def with_entropy(at: Tensor) -> Tensor:
        return FULL(replace(terms, entropy_N=at)).total

    def with_value(at: Tensor) -> Tensor:
        assert terms.values is not None
        return FULL(replace(terms, values=replace(terms.values, value_K=at))).total

    for leaf, function in (
        (terms.logp_N, with_logp),
        (terms.entropy_N, with_entropy),
        (terms.values.value_K, with_value),
    ):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, differences(function, leaf.detach()), rtol=1e-6, atol=1e-8)


def test_micro_batches_add_up_to_the_batch() -> None:
    """Loss, gradient and every statistic, split between the two trajectories."""
    whole = _terms()
    FULL(whole).total.backward()
    logp_N = whole.logp_N.detach().clone().requires_grad_()
    total, stats = 0.0, []
    for rows, values in ((slice(0, 2), slice(0, 1)), (slice(2, 3), slice(1, 2))):
        assert whole.entropy_N is not None
        assert whole.reference_logp_N is not None
        assert whole.values is not None
        part = Terms(
            logp_N=logp_N[rows],
            behaviour_logp_N=whole.behaviour_logp_N[rows],
            advantage_N=whole.advantage_N[rows],
            weight_N=whole.weight_N[rows],
            turn_N=whole.turn_N[rows] - whole.turn_N[rows][0],
            sequence_N=whole.sequence_N[rows] - whole.sequence_N[rows][0],
            entropy_N=whole.entropy_N.detach()[rows],
            reference_logp_N=whole.reference_logp_N[rows],
            values=ValueTerms(
                value_K=whole.values.value_K.detach()[values],
                target_K=whole.values.target_K[values],
                old_value_K=whole.values.old_value_K[values],
                weight_K=whole.values.weight_K[values],
            ),
        )
        loss = FULL(part)
        loss.total.backward()
        total += loss.total.item()
        stats.append({name: float(value) for name, value in loss.stats.items()})
    reference = FULL(whole)
    assert total == pytest.approx(reference.total.item())
    assert merge_stats(stats) == pytest.approx({name: float(value) for name, value in reference.stats.items()})
    torch.testing.assert_close(logp_N.grad, whole.logp_N.grad)


@pytest.mark.parametrize(
    ("field", "objective", "message"),
    [
        ("entropy_N", PolicyObjective(entropy=EntropyBonus(coefficient=1.0)), "entropy_N"),
        ("values", PolicyObjective(value=ValueRegression()), "no critic"),
        ("reference_logp_N", PolicyObjective(kl=KlPenalty(coefficient=1.0)), "no reference"),
    ],
)
def test_a_part_whose_terms_are_absent_is_refused(field: str, objective: PolicyObjective, message: str) -> None:
    """Absent is not zero."""
    absent: dict[str, Any] = {field: None}
    assert getattr(_terms(), field) is not None
    with pytest.raises(ArgumentError, match=message):
        objective(replace(_terms(), **absent))


def test_only_a_bonus_asks_for_entropy() -> None:
    """An engine computes it for nobody else."""
    assert FULL.needs_entropy
    assert not PolicyObjective(surrogate=ScoreFunction()).needs_entropy


def test_a_micro_batch_without_tokens_is_worth_nothing() -> None:
    """No extremes are reported, and the loss can be differentiated."""
    nothing = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    index = torch.zeros(0, dtype=torch.int64)
    terms = Terms(
        logp_N=nothing,
        behaviour_logp_N=nothing.detach(),
        advantage_N=nothing.detach(),
        weight_N=nothing.detach(),
        turn_N=index,
        sequence_N=index,
    )
    loss = PolicyObjective(surrogate=ClippedRatio(level=TokenRatio()))(terms)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert "log_ratio_max" not in loss.stats
