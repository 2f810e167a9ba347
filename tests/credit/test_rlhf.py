"""Rewards of RLHF against loops over tokens."""

import numpy as np
import pytest

from kifu.credit import Episode, TurnFacts, anchored_rewards
from kifu.errors import ArgumentError


def episode(turns: list[tuple[list[float], list[float]]], score: float | None) -> Episode:
    facts = tuple(
        TurnFacts(num_tokens=len(one), logprobs_N=np.array(one), reference_logprobs_N=np.array(two))
        for one, two in turns
    )
    return Episode(rewards_K=np.full(len(turns), 9.0), terminated=True, turns=facts, model_score=score, id="train/x")


def test_every_turn_pays_for_leaving_the_reference_and_the_last_one_gets_the_score() -> None:
    turns = [([-1.0, -0.5], [-1.5, -0.25]), ([], []), ([-2.0], [-1.0])]

    found = anchored_rewards(episode(turns, 3.0), beta=0.1)

    expected = [-0.1 * sum(p - q for p, q in zip(one, two, strict=True)) for one, two in turns]
    expected[-1] += 3.0
    assert found.tolist() == pytest.approx(expected)


def test_without_a_price_only_the_score_is_left() -> None:
    assert anchored_rewards(episode([([-1.0], [-5.0])] * 3, -0.5), beta=0.0).tolist() == [0.0, 0.0, -0.5]


def test_what_is_absent_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"train/x: the method needs `model_score`"):
        anchored_rewards(episode([([-1.0], [-1.0])], None), beta=0.1)
    silent = Episode(
        rewards_K=np.zeros(1),
        terminated=True,
        turns=(TurnFacts(num_tokens=1, logprobs_N=np.array([-1.0])),),
        model_score=1.0,
        id="train/x",
    )
    with pytest.raises(ArgumentError, match=r"train/x, turn 0: the method needs `reference_logprob`"):
        anchored_rewards(silent, beta=0.1)
