"""Through what a shared ratio is differentiated: a run of the published turn loss, loops and finite differences."""

from collections.abc import Callable
from math import exp

import pytest
import torch
from torch import Tensor

from kifu.objectives import (
    Carrier,
    ClippedRatio,
    ImportanceRatio,
    PolicyObjective,
    RatioLevel,
    SequenceRatio,
    Terms,
    TokenRatio,
    TurnRatio,
    level_name,
    segment_log_ratio,
)

Build = Callable[..., Terms]
CARRIERS: tuple[Carrier, ...] = ("segment", "token")

BEHAVIOUR = [-1.0, -0.7, -2.0, -0.4, -1.5]
LOGP = [-0.9, -0.8, -1.7, -0.5, -1.2]
TURN = [0, 0, 1, 2, 2]
SEQUENCE = [0, 0, 0, 1, 1]


def gradient(loss: Tensor, logp_N: Tensor) -> list[float]:
    """Of the loss with respect to every log-probability."""
    (found_N,) = torch.autograd.grad(loss, logp_N)
    return [float(value) for value in found_N]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_published_turn_loss_is_the_one_its_own_code_gives(build_terms: Build, carrier: Carrier) -> None:
    """AT2PO's official function: ratios 1.003005 and .996008, loss .196998, gradient -.2006 on the first turn only."""
    log_ratio = [0.004, 0.002, -0.01, -0.002, 0.0]
    behaviour = [-1.0] * 5
    logp_N = torch.tensor([-1.0 + ratio for ratio in log_ratio], dtype=torch.float64, requires_grad=True)
    terms = build_terms(
        logp_N, behaviour=behaviour, advantage=[1.0, 1.0, -1.0, -1.0, -1.0], weight=[0.2] * 5, turn=[0, 0, 1, 1, 1]
    )
    level = TurnRatio(aggregation="geometric", gradient=carrier)

    found = PolicyObjective(surrogate=ClippedRatio(level=level, low=3e-3, high=4e-3))(terms)

    assert segment_log_ratio(terms, level).exp().tolist() == pytest.approx([1.003005] * 2 + [0.996008] * 3, abs=5e-7)
    assert found.total.item() == pytest.approx(0.196998, abs=5e-7)
    assert gradient(found.total, logp_N) == pytest.approx([-0.2006, -0.2006, 0.0, 0.0, 0.0], abs=5e-5)
    assert int(found.stats["clipped_tokens"]) == 3


@pytest.mark.parametrize("level", [TurnRatio, SequenceRatio])
@pytest.mark.parametrize("aggregation", ["product", "geometric"])
def test_the_value_of_a_ratio_does_not_depend_on_what_carries_its_gradient(
    build_terms: Build, level: Callable[..., RatioLevel], aggregation: str
) -> None:
    terms = build_terms(
        torch.tensor(LOGP, dtype=torch.float64), behaviour=BEHAVIOUR, advantage=[1.0] * 5, turn=TURN, sequence=SEQUENCE
    )
    plain, own = (segment_log_ratio(terms, level(aggregation=aggregation, gradient=carrier)) for carrier in CARRIERS)
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-15)


def test_a_token_carries_its_own_advantage_and_a_segment_spreads_the_mean(build_terms: Build) -> None:
    """One sequence of three tokens at log-ratio (.3, -.1, .1): rho = exp(.1); advantages 1, 2, -4 with weight 1/3.

    Token by token the gradient is -rho w A_n; through the segment every token gets -rho w mean(A).
    """
    advantage, found = [1.0, 2.0, -4.0], {}
    for carrier in CARRIERS:
        logp_N = torch.tensor([-0.7, -1.1, -0.9], dtype=torch.float64, requires_grad=True)
        terms = build_terms(logp_N, behaviour=[-1.0] * 3, advantage=advantage, weight=[1 / 3] * 3)
        loss = PolicyObjective(surrogate=ImportanceRatio(level=SequenceRatio(gradient=carrier)))(terms).total
        found[carrier] = gradient(loss, logp_N)

    rho = exp(0.1)
    assert found["token"] == pytest.approx([-rho / 3 * value for value in advantage])
    assert found["segment"] == pytest.approx([-rho / 3 * (sum(advantage) / 3)] * 3)


@pytest.mark.parametrize("level", [TurnRatio, SequenceRatio])
@pytest.mark.parametrize("aggregation", ["product", "geometric"])
def test_the_token_gradient_is_that_of_a_ratio_frozen_but_for_the_token(
    build_terms: Build, differences: Callable[..., Tensor], level: Callable[..., RatioLevel], aggregation: str
) -> None:
    """Finite differences of a loss whose ratio is the recorded number times exp(log pi - its value at the point)."""
    advantage, weight = [1.0, -0.5, 2.0, -2.0, 1.0], [0.5, 0.25, 0.25, 1.0, 0.75]
    segments = TURN if level is TurnRatio else SEQUENCE
    token = [a - b for a, b in zip(LOGP, BEHAVIOUR, strict=True)]
    shared = []
    for segment in segments:
        inside = [value for value, other in zip(token, segments, strict=True) if other == segment]
        shared.append(sum(inside) / (len(inside) if aggregation == "geometric" else 1))
    at_N = torch.tensor(LOGP, dtype=torch.float64)

    def frozen(moved_N: Tensor) -> Tensor:
        rho_N = torch.tensor(shared, dtype=torch.float64).exp() * (moved_N - at_N).exp()
        return -(rho_N * torch.tensor(advantage) * torch.tensor(weight)).sum()

    logp_N = at_N.clone().requires_grad_()
    terms = build_terms(logp_N, behaviour=BEHAVIOUR, advantage=advantage, weight=weight, turn=TURN, sequence=SEQUENCE)
    surrogate = ImportanceRatio(level=level(aggregation=aggregation, gradient="token"))
    found = gradient(PolicyObjective(surrogate=surrogate)(terms).total, logp_N)
    assert found == pytest.approx(differences(frozen, at_N).tolist(), rel=1e-6, abs=1e-8)


def test_levels_are_named_for_protocols() -> None:
    levels: list[RatioLevel] = [
        TokenRatio(),
        TurnRatio(),
        TurnRatio(aggregation="geometric"),
        SequenceRatio(aggregation="product"),
        SequenceRatio(gradient="token"),
    ]
    assert [level_name(level) for level in levels] == [
        "token",
        "turn, product over its tokens",
        "turn, geometric mean over its tokens",
        "trajectory, product over its tokens",
        "trajectory, geometric mean over its tokens, differentiated token by token",
    ]
