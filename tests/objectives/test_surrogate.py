"""Surrogates against formulas written out case by case, a paper's numbers and finite differences."""

from collections.abc import Callable
from math import exp, log, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kifu.errors import ArgumentError
from kifu.objectives import (
    BandMask,
    CappedWeight,
    ClippedRatio,
    ImportanceRatio,
    PolicyObjective,
    PreservingClip,
    RatioLevel,
    ScoreFunction,
    SequenceRatio,
    Surrogate,
    Terms,
    TokenRatio,
    TurnRatio,
    clipped_surrogate,
    extreme_rule,
    segment_log_ratio,
)

LEVELS: list[RatioLevel] = [
    TokenRatio(),
    TurnRatio(),
    TurnRatio(aggregation="geometric"),
    SequenceRatio(aggregation="product"),
    SequenceRatio(),
]
BEHAVIOUR = [-1.0, -0.7, -2.0, -0.4, -1.5]
ADVANTAGE = [1.0, 1.0, 1.0, -2.0, -2.0]
WEIGHT = [0.5, 0.5, 0.25, 1.0, 0.75]
TURN = [0, 0, 1, 2, 2]
SEQUENCE = [0, 0, 0, 1, 1]
LOGP = [-0.9, -0.8, -1.7, -0.5, -1.2]

Build = Callable[..., Terms]


def _terms(build: Build, logp_N: Tensor) -> Terms:
    return build(logp_N, behaviour=BEHAVIOUR, advantage=ADVANTAGE, weight=WEIGHT, turn=TURN, sequence=SEQUENCE)


def _loss(build: Build, surrogate: Surrogate, logp_N: Tensor) -> Tensor:
    return PolicyObjective(surrogate=surrogate)(_terms(build, logp_N)).total


def test_ratios_of_the_steppo_example_are_the_printed_ones(build_terms: Build) -> None:
    """Log-ratios .3, -.1, .1: geometric 1.105171, product 1.349859."""
    terms = build_terms(
        torch.tensor([-0.7, -1.1, -0.9], dtype=torch.float64), behaviour=[-1.0] * 3, advantage=[1.0] * 3
    )
    for level in (TurnRatio(aggregation="geometric"), SequenceRatio()):
        assert segment_log_ratio(terms, level).exp().tolist() == pytest.approx([1.105171] * 3, abs=5e-7)
    for level in (TurnRatio(), SequenceRatio(aggregation="product")):
        assert segment_log_ratio(terms, level).exp().tolist() == pytest.approx([1.349859] * 3, abs=5e-7)


def test_the_turn_ratio_is_the_exponential_of_the_summed_log_ratios(build_terms: Build) -> None:
    """The product of token ratios, turn by turn."""
    found = segment_log_ratio(_terms(build_terms, torch.tensor(LOGP, dtype=torch.float64)), TurnRatio()).exp()
    ratio = [exp(a - b) for a, b in zip(LOGP, BEHAVIOUR, strict=True)]
    first, last = ratio[0] * ratio[1], ratio[3] * ratio[4]
    assert found.tolist() == pytest.approx([first, first, ratio[2], last, last])


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("bound", ["none", "wide", "tight", "dual"])
def test_the_gradient_of_every_ratio_surrogate_is_its_finite_difference(
    build_terms: Build, differences: Callable[..., Tensor], level: RatioLevel, bound: str
) -> None:
    """Every level with no bound, a bound nobody meets, one that some meet, and a dual one."""
    surrogates: dict[str, Surrogate] = {
        "none": ImportanceRatio(level=level),
        "wide": ClippedRatio(level=level, low=0.9, high=5.0),
        "tight": ClippedRatio(level=level, low=0.04, high=0.06),
        "dual": ClippedRatio(level=level, low=0.04, high=0.06, dual=1.1),
    }
    surrogate = surrogates[bound]
    logp_N = torch.tensor(LOGP, dtype=torch.float64, requires_grad=True)
    _loss(build_terms, surrogate, logp_N).backward()
    assert logp_N.grad is not None
    expected_N = differences(lambda at_N: _loss(build_terms, surrogate, at_N), logp_N.detach())
    torch.testing.assert_close(logp_N.grad, expected_N, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_the_score_function_is_minus_weight_times_advantage(build_terms: Build) -> None:
    """Whatever the log-probabilities are."""
    logp_N = torch.tensor(LOGP, dtype=torch.float64, requires_grad=True)
    _loss(build_terms, ScoreFunction(), logp_N).backward()
    assert logp_N.grad is not None
    assert logp_N.grad.tolist() == pytest.approx([-w * a for w, a in zip(WEIGHT, ADVANTAGE, strict=True)])


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_at_ratio_one_every_level_has_the_score_function_s_gradient_when_segments_share_credit(
    build_terms: Build, level: RatioLevel
) -> None:
    """Every token carries its segment: a geometric ratio averages over it, a product counts each token."""
    logp_N = torch.tensor(BEHAVIOUR, dtype=torch.float64, requires_grad=True)
    terms = build_terms(logp_N, behaviour=BEHAVIOUR, advantage=ADVANTAGE, turn=TURN, sequence=SEQUENCE)
    PolicyObjective(surrogate=ClippedRatio(level=level))(terms).total.backward()
    assert logp_N.grad is not None
    size_N = {
        "TokenRatio": [1] * 5,
        "TurnRatio": [2, 2, 1, 2, 2],
        "SequenceRatio": [3, 3, 3, 2, 2],
    }[type(level).__name__]
    product = getattr(level, "aggregation", "geometric") == "product"
    expected = [-a * (size if product else 1) for a, size in zip(ADVANTAGE, size_N, strict=True)]
    assert logp_N.grad.tolist() == pytest.approx(expected)


@given(
    log_ratio=st.floats(-2, 2),
    advantage=st.floats(-3, 3),
    low=st.floats(0, 0.9),
    high=st.floats(0, 2),
    dual=st.none() | st.floats(1.05, 5),
)
def test_the_clipped_loss_is_the_published_minimum(
    log_ratio: float, advantage: float, low: float, high: float, dual: float | None
) -> None:
    """min(rho A, clip(rho) A), and the dual bound from below where A is negative."""
    rho = exp(log_ratio)
    expected = min(rho * advantage, min(max(rho, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        expected = max(expected, dual * advantage)
    found, _ = clipped_surrogate(
        log_ratio_N=torch.tensor([log_ratio], dtype=torch.float64),
        advantage_N=torch.tensor([advantage], dtype=torch.float64),
        weight_N=torch.ones(1, dtype=torch.float64),
        low=low,
        high=high,
        dual=dual,
    )
    assert float(found) == pytest.approx(-expected, rel=1e-12, abs=1e-12)


def test_a_bound_that_holds_has_exactly_no_gradient_even_when_the_ratio_overflows() -> None:
    """exp(2000) is inf in float64; the bounded loss stays (1 + high) A."""
    log_ratio_N = torch.tensor([2000.0, -2000.0], dtype=torch.float64, requires_grad=True)
    loss, bound_N = clipped_surrogate(
        log_ratio_N=log_ratio_N,
        advantage_N=torch.tensor([1.0, -1.0], dtype=torch.float64),
        weight_N=torch.ones(2, dtype=torch.float64),
        low=0.2,
        high=0.28,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-1.28 + 0.8)
    assert bound_N.all()
    assert log_ratio_N.grad is not None
    assert log_ratio_N.grad.tolist() == [0.0, 0.0]


def test_opposite_advantages_on_one_shared_token_do_not_cancel_off_ratio_one(build_terms: Build) -> None:
    """Ratio 1.5, bound 1.2: the winner is bounded, the loser pulls with 1.5; a merged token would pull with 0."""
    shared = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    behaviour = -0.5 - float(torch.tensor(1.5, dtype=torch.float64).log())
    terms = build_terms(
        shared.expand(2), behaviour=[behaviour] * 2, advantage=[1.0, -1.0], turn=[0, 1], sequence=[0, 1]
    )
    PolicyObjective(surrogate=ClippedRatio(level=TokenRatio()))(terms).total.backward()
    assert shared.grad is not None
    assert shared.grad.item() == pytest.approx(1.5)


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("kind", ["score", "importance", "clipped"])
@pytest.mark.parametrize("poison", [nan, float("inf"), float("-inf")])
def test_padding_may_hold_any_number(build_terms: Build, level: RatioLevel, kind: str, poison: float) -> None:
    """Poisoned occurrences of weight 0, in the same turn, change neither loss nor gradient."""
    surrogates: dict[str, Surrogate] = {
        "score": ScoreFunction(),
        "importance": ImportanceRatio(level=level),
        "clipped": ClippedRatio(level=level),
    }
    surrogate = surrogates[kind]
    clean_N = torch.tensor(LOGP[:2], dtype=torch.float64, requires_grad=True)
    clean = PolicyObjective(surrogate=surrogate)(build_terms(clean_N, behaviour=BEHAVIOUR[:2], advantage=[1.0, 1.0]))
    clean.total.backward()
    poisoned_N = torch.tensor([*LOGP[:2], poison], dtype=torch.float64, requires_grad=True)
    terms = build_terms(
        poisoned_N, behaviour=[*BEHAVIOUR[:2], poison], advantage=[1.0, 1.0, poison], weight=[1.0, 1.0, 0.0]
    )
    found = PolicyObjective(surrogate=surrogate)(terms)
    found.total.backward()
    assert clean_N.grad is not None
    assert poisoned_N.grad is not None
    assert found.total.item() == clean.total.item()
    assert poisoned_N.grad.tolist() == [*clean_N.grad.tolist(), 0.0]
    assert {name: float(value) for name, value in found.stats.items()} == {
        name: float(value) for name, value in clean.stats.items()
    }


def test_a_token_without_credit_has_exactly_no_gradient(build_terms: Build) -> None:
    """Advantage 0 with a ratio that overflows must not become 0 times inf."""
    logp_N = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    terms = build_terms(logp_N, behaviour=[-2000.0], advantage=[0.0])
    for surrogate in (ImportanceRatio(level=TokenRatio()), ClippedRatio(level=TokenRatio())):
        (gradient_N,) = torch.autograd.grad(PolicyObjective(surrogate=surrogate)(terms).total, logp_N)
        assert gradient_N.tolist() == [0.0]


@pytest.mark.parametrize("kind", [ClippedRatio, PreservingClip])
@pytest.mark.parametrize("settings", [{"low": -0.1}, {"low": 1.1}, {"high": -0.1}, {"dual": 1.0}, {"low": nan}])
def test_bounds_that_cannot_be_meant_are_refused(kind: Callable[..., Surrogate], settings: dict[str, float]) -> None:
    """No bound is below 0 or on the wrong side of 1, the dual bound lies above 1."""
    with pytest.raises(ArgumentError, match=r"a ratio is never below 0|the dual clip"):
        kind(level=TokenRatio(), **settings)


def test_a_preserving_clip_has_the_clip_s_value_and_the_printed_gradients(build_terms: Build) -> None:
    """AEPO's official function: loss -.1 with either clip; five times the gradient is -1.2 or 0 on the first token."""
    ratios, advantage = [1.5, 1.5, 0.5, 0.5, 1.1], [1.0, -1.0, 1.0, -1.0, 1.0]
    for surrogate, first in ((PreservingClip(level=TokenRatio()), -1.2), (ClippedRatio(level=TokenRatio()), 0.0)):
        logp_N = torch.tensor([log(ratio) - 2.0 for ratio in ratios], dtype=torch.float64, requires_grad=True)
        found = PolicyObjective(surrogate=surrogate)(
            build_terms(logp_N, behaviour=[-2.0] * 5, advantage=advantage, weight=[0.2] * 5)
        )
        (gradient_N,) = torch.autograd.grad(found.total, logp_N)
        assert found.total.item() == pytest.approx(-0.1, abs=1e-12)
        assert (5 * gradient_N).tolist() == pytest.approx([first, 1.5, -0.5, 0.0, -1.1])
        assert int(found.stats["clipped_tokens"]) == 2


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_preserved_gradient_is_that_of_the_bound_times_the_ratio_over_its_value(
    build_terms: Build, differences: Callable[..., Tensor], level: RatioLevel
) -> None:
    """Finite differences of min(rho A, clip(rho) A) with 1 + high replaced by (1 + high) rho / rho at the point."""
    at_N = torch.tensor(LOGP, dtype=torch.float64)
    held_N = segment_log_ratio(_terms(build_terms, at_N), level).exp()

    def written_out(moved_N: Tensor) -> Tensor:
        rho_N = segment_log_ratio(_terms(build_terms, moved_N), level).exp()
        parts = []
        for rho, was, advantage, weight in zip(rho_N, held_N, ADVANTAGE, WEIGHT, strict=True):
            bounded = 1.06 * rho / was if was > 1.06 else torch.clamp(rho, min=0.96)
            parts.append(-weight * torch.minimum(rho * advantage, bounded * advantage))
        return torch.stack(parts).sum()

    logp_N = at_N.clone().requires_grad_()
    loss = _loss(build_terms, PreservingClip(level=level, low=0.04, high=0.06), logp_N)
    (gradient_N,) = torch.autograd.grad(loss, logp_N)
    assert loss.item() == pytest.approx(written_out(at_N).item())
    torch.testing.assert_close(gradient_N, differences(written_out, at_N), rtol=1e-6, atol=1e-8)


def test_a_preserved_gradient_is_finite_even_when_the_ratio_overflows(build_terms: Build) -> None:
    logp_N = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    terms = build_terms(logp_N, behaviour=[-2000.0], advantage=[1.0])
    loss = PolicyObjective(surrogate=PreservingClip(level=TokenRatio()))(terms).total
    (gradient_N,) = torch.autograd.grad(loss, logp_N)
    assert [loss.item(), *gradient_N.tolist()] == pytest.approx([-1.2, -1.2])


def test_what_becomes_of_an_extreme_ratio_is_told_with_its_bounds() -> None:
    token = TokenRatio()
    assert extreme_rule(ScoreFunction()) == "none: no ratio enters the loss"
    assert extreme_rule(ImportanceRatio(level=token)) == "none: every ratio counts in full"
    assert extreme_rule(ClippedRatio(level=token, high=0.28, dual=3.0)) == (
        "no gradient above 1.28 for gains, below 0.8 for losses, nor above 3 for losses"
    )
    assert "held at 1.2 with its gradient" in extreme_rule(PreservingClip(level=token))
    assert "capped at 6, no lower cap" in extreme_rule(CappedWeight(level=token, high=5.0))
    assert "outside (0.8, 1.28)" in extreme_rule(BandMask(level=token))
