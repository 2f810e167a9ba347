"""Reductions against the source's numbers, a paper's numbers and invariances."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import ArgumentError
from kifu.objectives import (
    ConstantNormalizer,
    Reduction,
    TokenMean,
    TrajectoryMean,
    TurnMean,
    token_weights,
    unit_of,
    weight_by,
)

MEANS: list[Reduction] = [TokenMean(), TurnMean(), TrajectoryMean()]
PLANS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)
"""Tokens of each turn of each trajectory."""


def _turns(counts_BK: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [np.repeat(np.arange(len(counts_K)), counts_K) for counts_K in counts_BK]


def _reduced(reduction: Reduction, losses_BK: Sequence[Sequence[Sequence[float]]]) -> float:
    weights_BN = token_weights(reduction, turns_BN=_turns([[len(turn) for turn in turns] for turns in losses_BK]))
    flat_BN = [np.array([x for turn in turns for x in turn]) for turns in losses_BK]
    return float(sum(np.sum(w * x) for w, x in zip(weights_BN, flat_BN, strict=True)))


@pytest.mark.parametrize(
    ("reduction", "expected"), [(TokenMean(), 2.3333), (TrajectoryMean(), 2.5), (TurnMean(), 3.3333)], ids=str
)
def test_the_three_reductions_of_the_source_example(reduction: Reduction, expected: float) -> None:
    """Losses {[1, 1], [7]} and {[2] * 6}."""
    assert _reduced(reduction, [[[1, 1], [7]], [[2] * 6]]) == pytest.approx(expected, abs=5e-5)


def test_observation_tokens_in_the_denominator_would_dilute_8_25_times() -> None:
    """40 policy tokens among 330: the weight is that of 40."""
    weight = token_weights(TokenMean(), turns_BN=[np.zeros(40, dtype=np.int64)])[0][0]
    assert weight * 330 == pytest.approx(8.25)


def test_a_rollout_cut_into_rows_does_not_gain_weight() -> None:
    """One rollout of 10 + 30 tokens and one of 20: .0125 and .025 per token, as printed for Agent Lightning."""
    first, second = token_weights(TrajectoryMean(), turns_BN=_turns([[10, 30], [20]]))
    assert (set(first.tolist()), set(second.tolist())) == ({0.0125}, {0.025})


def test_a_void_trajectory_is_in_no_denominator() -> None:
    """SimpleTIR's example: masks [1,1,1] and, void, nothing: 3 tokens, not 5."""
    turns_BN = [np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64)]
    for reduction in MEANS:
        first, second = token_weights(reduction, turns_BN=turns_BN)
        assert first.tolist() == pytest.approx([1 / 3] * 3)
        assert second.size == 0


@pytest.mark.parametrize("reduction", MEANS, ids=str)
@given(counts=PLANS)
def test_a_mean_of_ones_is_one(reduction: Reduction, counts: list[list[int]]) -> None:
    """Every mean has total weight 1, whatever the lengths."""
    assert sum(w.sum() for w in token_weights(reduction, turns_BN=_turns(counts))) == pytest.approx(1.0)


@given(counts=PLANS, data=st.data())
def test_each_mean_is_the_formula_written_out(counts: list[list[int]], data: st.DataObject) -> None:
    """Nested means over tokens, turns and trajectories on random losses."""
    losses = [
        [data.draw(st.lists(st.floats(-5, 5), min_size=size, max_size=size)) for size in sizes] for sizes in counts
    ]
    tokens = [x for turns in losses for turn in turns for x in turn]
    assert _reduced(TokenMean(), losses) == pytest.approx(np.mean(tokens), abs=1e-9)
    assert _reduced(TurnMean(), losses) == pytest.approx(
        np.mean([np.mean(turn) for turns in losses for turn in turns]), abs=1e-9
    )
    assert _reduced(TrajectoryMean(), losses) == pytest.approx(
        np.mean([np.mean([x for turn in turns for x in turn]) for turns in losses]), abs=1e-9
    )
    assert _reduced(ConstantNormalizer(tokens=7), losses) == pytest.approx(sum(tokens) / (7 * len(losses)), abs=1e-9)


@pytest.mark.parametrize("reduction", [*MEANS, ConstantNormalizer(tokens=3)], ids=str)
@given(counts=PLANS, data=st.data())
def test_any_split_into_micro_batches_adds_up_to_the_whole(
    reduction: Reduction, counts: list[list[int]], data: st.DataObject
) -> None:
    """Weights are global: partial sums over any cut of the trajectories give the loss of the plan."""
    weights_BN = token_weights(reduction, turns_BN=_turns(counts))
    losses_BN = [np.array(data.draw(st.lists(st.floats(-5, 5), min_size=w.size, max_size=w.size))) for w in weights_BN]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(counts)), max_size=3)))
    pieces = [
        sum(float(np.sum(w * x)) for w, x in zip(weights_BN[a:b], losses_BN[a:b], strict=True))
        for a, b in pairwise([0, *cuts, len(counts)])
    ]
    whole = float(np.sum(np.concatenate(weights_BN) * np.concatenate(losses_BN)))
    assert sum(pieces) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("reduction", [*MEANS, ConstantNormalizer(tokens=3)], ids=str)
def test_the_order_of_trajectories_changes_no_weight(reduction: Reduction) -> None:
    """Permuting the plan permutes the weights."""
    turns_BN = _turns([[1, 2], [4], [3, 1, 1]])
    forward, backward = token_weights(reduction, turns_BN=turns_BN), token_weights(reduction, turns_BN=turns_BN[::-1])
    for one, other in zip(forward, backward[::-1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_empty_plan_has_no_weights() -> None:
    """Nothing is trained, nothing is divided by zero."""
    for reduction in (*MEANS, ConstantNormalizer()):
        assert token_weights(reduction, turns_BN=[]) == ()
        assert token_weights(reduction, turns_BN=[np.zeros(0, dtype=np.int64)])[0].size == 0


def test_the_unit_of_the_report_names_the_example() -> None:
    """One word per mean, the constant with its number."""
    assert [unit_of(reduction) for reduction in MEANS] == ["token", "turn", "trajectory"]
    assert unit_of(ConstantNormalizer(tokens=640)) == "trajectory, token losses divided by the constant 640"


def test_the_pull_of_long_trajectories_is_seen() -> None:
    """A trajectory of 9 tokens pulls 9 times as much as one of 1 under a token mean, equally under its own."""
    turns_BN = _turns([[9], [1]])
    by_token = weight_by(["long", "short"], weights_BN=token_weights(TokenMean(), turns_BN=turns_BN))
    by_trajectory = weight_by(["long", "short"], weights_BN=token_weights(TrajectoryMean(), turns_BN=turns_BN))
    assert by_token == pytest.approx({"long": 0.9, "short": 0.1})
    assert by_trajectory == pytest.approx({"long": 0.5, "short": 0.5})


def test_credit_counts_by_its_size() -> None:
    """|w A|, summed over the tokens of each label."""
    weights_BN = (np.array([0.5, 0.5]), np.array([1.0]))
    found = weight_by([2, 2], weights_BN=weights_BN, advantages_BN=[np.array([-1.0, 1.0]), np.array([0.0])])
    assert found == {2: 1.0}


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("inf"), float("nan")])
def test_a_constant_that_divides_nothing_is_refused(tokens: float) -> None:
    """Finite and positive."""
    with pytest.raises(ArgumentError, match="constant normalizer"):
        ConstantNormalizer(tokens=tokens)
