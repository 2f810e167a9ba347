"""Weights of ``log pi`` without a gradient of their own: printed numbers, loops, and differences at a frozen weight."""

from collections.abc import Callable
from math import exp, inf, log, nan

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
    PolicyObjective,
    RatioLevel,
    SequenceRatio,
    Surrogate,
    Terms,
    TokenRatio,
    TurnRatio,
    capped_surrogate,
    masked_surrogate,
)

Build = Callable[..., Terms]
LEVELS: list[RatioLevel] = [TokenRatio(), TurnRatio(aggregation="geometric"), SequenceRatio(aggregation="product")]
BEHAVIOUR = [-1.0, -0.7, -2.0, -0.4, -1.5]
LOGP = [-0.5, -0.8, -1.7, -0.9, -1.2]
ADVANTAGE = [1.0, -1.0, 1.0, -2.0, -2.0]
WEIGHT = [0.5, 0.5, 0.25, 1.0, 0.75]
TURN = [0, 0, 1, 2, 2]
SEQUENCE = [0, 0, 0, 1, 1]


def test_the_printed_band_keeps_two_of_four_ratios(build_terms: Build) -> None:
    """SAO at .2 and .28: ratios .5, 1.1, 1.5, .85 weigh 0, 1.1, 0, .85; the gradient is minus weight times A."""
    ratios = [0.5, 1.1, 1.5, 0.85]
    logp_N = torch.tensor([-1.0 + log(ratio) for ratio in ratios], dtype=torch.float64, requires_grad=True)
    terms = build_terms(logp_N, behaviour=[-1.0] * 4, advantage=[1.0, 1.0, -1.0, -1.0], weight=[0.25] * 4)

    found = PolicyObjective(surrogate=BandMask(level=TokenRatio(), low=0.2, high=0.28))(terms)
    (gradient_N,) = torch.autograd.grad(found.total, logp_N)

    assert gradient_N.tolist() == pytest.approx([0.0, -0.25 * 1.1, 0.0, 0.25 * 0.85])
    assert int(found.stats["clipped_tokens"]) == 2
    assert int(found.stats["tokens"]) == 4


def test_a_cap_acts_on_either_sign_and_leaves_a_gradient_where_a_clip_leaves_none(build_terms: Build) -> None:
    """Ratios 3, 3, .1 with A 1, -1, 1 and a cap of 2: weights 2, 2, .1. PPO would give 0, 3, .1 at bounds .2 and 1."""
    surrogates: list[tuple[Surrogate, list[float], int]] = [
        (CappedWeight(level=TokenRatio(), high=1.0), [-2.0, 2.0, -0.1], 2),
        (CappedWeight(level=TokenRatio(), high=1.0, low=0.2), [-2.0, 2.0, -0.8], 3),
        (ClippedRatio(level=TokenRatio(), low=0.2, high=1.0), [0.0, 3.0, -0.1], 1),
    ]
    for surrogate, gradient, bound in surrogates:
        logp_N = torch.tensor([log(ratio) - 3.0 for ratio in (3.0, 3.0, 0.1)], dtype=torch.float64, requires_grad=True)
        found = PolicyObjective(surrogate=surrogate)(
            build_terms(logp_N, behaviour=[-3.0] * 3, advantage=[1.0, -1.0, 1.0])
        )
        (gradient_N,) = torch.autograd.grad(found.total, logp_N)
        assert gradient_N.tolist() == pytest.approx(gradient)
        assert int(found.stats["clipped_tokens"]) == bound


def _segment_ratios(level: RatioLevel) -> list[float]:
    """Ratio of every token's segment, by loops over the lists above."""
    token = [a - b for a, b in zip(LOGP, BEHAVIOUR, strict=True)]
    if isinstance(level, TokenRatio):
        return [exp(value) for value in token]
    labels = TURN if isinstance(level, TurnRatio) else SEQUENCE
    found = []
    for label in labels:
        inside = [value for value, other in zip(token, labels, strict=True) if other == label]
        found.append(exp(sum(inside) / (len(inside) if level.aggregation == "geometric" else 1)))
    return found


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("kind", ["cap", "mask"])
def test_loss_and_gradient_are_those_of_a_weighted_likelihood_with_the_weight_held(
    build_terms: Build, differences: Callable[..., Tensor], level: RatioLevel, kind: str
) -> None:
    """Value at the point and central differences of - sum w f(rho) A log pi, with f(rho) a number."""
    ratios = _segment_ratios(level)
    surrogate: Surrogate
    if kind == "cap":
        surrogate = CappedWeight(level=level, high=0.1)
        factors = [min(ratio, 1.1) for ratio in ratios]
    else:
        surrogate = BandMask(level=level, low=0.15, high=0.2)
        factors = [ratio if 0.85 < ratio < 1.2 else 0.0 for ratio in ratios]
    at_N = torch.tensor(LOGP, dtype=torch.float64)

    def held(moved_N: Tensor) -> Tensor:
        parts = zip(factors, ADVANTAGE, WEIGHT, moved_N, strict=True)
        return -torch.stack([f * a * w * value for f, a, w, value in parts]).sum()

    logp_N = at_N.clone().requires_grad_()
    terms = build_terms(logp_N, behaviour=BEHAVIOUR, advantage=ADVANTAGE, weight=WEIGHT, turn=TURN, sequence=SEQUENCE)
    found = PolicyObjective(surrogate=surrogate)(terms)
    (gradient_N,) = torch.autograd.grad(found.total, logp_N)

    assert found.total.item() == pytest.approx(held(at_N).item())
    torch.testing.assert_close(gradient_N, differences(held, at_N), rtol=1e-6, atol=1e-8)
    assert int(found.stats["clipped_tokens"]) == sum(f != ratio for f, ratio in zip(factors, ratios, strict=True)) > 0


@given(
    log_ratio=st.floats(-2, 2),
    advantage=st.floats(-3, 3).filter(lambda value: value != 0),
    high=st.floats(0, 2),
    low=st.none() | st.floats(0, 1),
)
def test_the_weight_is_the_ratio_between_the_caps(
    log_ratio: float, advantage: float, high: float, low: float | None
) -> None:
    """sg(clip(rho, 1 - low, 1 + high)) A log pi at log pi = -1."""
    rho = exp(log_ratio)
    weight = min(max(rho, 0.0 if low is None else 1 - low), 1 + high)
    found, _ = capped_surrogate(
        logp_N=torch.tensor([-1.0], dtype=torch.float64),
        log_ratio_N=torch.tensor([log_ratio], dtype=torch.float64),
        advantage_N=torch.tensor([advantage], dtype=torch.float64),
        weight_N=torch.ones(1, dtype=torch.float64),
        high=high,
        low=low,
    )
    assert float(found) == pytest.approx(weight * advantage, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("log_ratio", [2000.0, -2000.0])
def test_an_overflowing_ratio_is_capped_or_masked(log_ratio: float) -> None:
    """exp(2000) is inf in float64."""
    given_ = {
        "logp_N": torch.tensor([-1.0], dtype=torch.float64),
        "log_ratio_N": torch.tensor([log_ratio], dtype=torch.float64),
        "advantage_N": torch.ones(1, dtype=torch.float64),
        "weight_N": torch.ones(1, dtype=torch.float64),
    }
    capped, is_capped = capped_surrogate(**given_, high=4.0, low=0.5)
    masked, is_masked = masked_surrogate(**given_, low=0.2, high=0.2)
    assert (float(capped), is_capped.tolist()) == (5.0 if log_ratio > 0 else 0.5, [True])
    assert (float(masked), is_masked.tolist()) == (0.0, [True])


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("kind", ["cap", "mask"])
@pytest.mark.parametrize("poison", [nan, inf, -inf])
def test_padding_may_hold_any_number(build_terms: Build, level: RatioLevel, kind: str, poison: float) -> None:
    """A poisoned occurrence of weight 0, in the same turn, changes neither loss, gradient nor statistics."""
    surrogate: Surrogate = CappedWeight(level=level, high=0.05) if kind == "cap" else BandMask(level=level, high=0.1)
    found = []
    for tail in ([], [poison]):
        logp_N = torch.tensor([*LOGP[:2], *tail], dtype=torch.float64, requires_grad=True)
        terms = build_terms(
            logp_N,
            behaviour=[*BEHAVIOUR[:2], *tail],
            advantage=[1.0, 1.0, *tail],
            weight=[1.0, 1.0, *[0.0 for _ in tail]],
        )
        loss = PolicyObjective(surrogate=surrogate)(terms)
        (gradient_N,) = torch.autograd.grad(loss.total, logp_N)
        found.append((loss.total.item(), gradient_N.tolist()[:2], {k: float(v) for k, v in loss.stats.items()}))
        assert gradient_N.tolist()[2:] == [0.0 for _ in tail]
    assert found[0] == found[1]


def test_a_token_without_credit_is_neither_capped_nor_masked(build_terms: Build) -> None:
    logp_N = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    terms = build_terms(logp_N, behaviour=[-2000.0], advantage=[0.0])
    for surrogate in (CappedWeight(level=TokenRatio(), high=1.0), BandMask(level=TokenRatio())):
        found = PolicyObjective(surrogate=surrogate)(terms)
        (gradient_N,) = torch.autograd.grad(found.total, logp_N)
        assert (gradient_N.tolist(), int(found.stats["clipped_tokens"])) == ([0.0], 0)


@pytest.mark.parametrize("settings", [{"high": -0.1}, {"high": inf}, {"high": nan}, {"high": 1.0, "low": 1.5}])
def test_caps_that_cannot_be_meant_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="weight"):
        CappedWeight(level=TokenRatio(), **settings)


@pytest.mark.parametrize("settings", [{"low": -0.1}, {"low": 1.1}, {"high": -0.1}, {"high": nan}])
def test_bands_that_cannot_be_meant_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="a ratio is never below 0"):
        BandMask(level=TokenRatio(), **settings)
