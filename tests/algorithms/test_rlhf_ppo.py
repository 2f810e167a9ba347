"""RLHF's credit in loops, and where it leaves PPO."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Known = Callable[..., Episode]
Groups = list[list[Episode]]
Train = Callable[..., Any]
SCORES = [[1.5, -0.75], [-2.0], [0.4, 0.4]]
"""What the reward model says of the ragged attempts; of the last two the same."""


@pytest.fixture
def attempt(make_known: Known) -> Episode:
    found = make_known(
        [0.0, 0.0, 7.0],
        tokens=[1, 2, 1],
        values=[0.3, -0.2, 0.5],
        logprobs_N=[np.array(part) for part in ([-1.0], [-0.5, -0.5], [-2.0])],
        reference_logprobs_N=[np.array(part) for part in ([-1.5], [-0.25, -1.0], [-1.0])],
    )
    return replace(found, model_score=1.5)


def test_credit_is_gae_on_the_score_and_the_penalty(attempt: Episode) -> None:
    [found] = build_algorithm("rlhf_ppo", {"beta": 0.2, "lam": 0.9}).credit([attempt], RewardRules(gamma=0.95)) or []

    rewards = [-0.2 * 0.5, -0.2 * (-0.25 + 0.5), -0.2 * -1.0 + 1.5]
    values, expected, following = [0.3, -0.2, 0.5, 0.0], [0.0] * 3, 0.0
    for k in (2, 1, 0):
        following = rewards[k] + 0.95 * values[k + 1] - values[k] + 0.95 * 0.9 * following
        expected[k] = following
    assert found.advantages_K.tolist() == pytest.approx(expected)
    assert found.value_targets_K is not None
    assert found.value_targets_K.tolist() == pytest.approx([a + v for a, v in zip(expected, values, strict=False)])


def test_ppo_takes_the_environments_reward_instead(attempt: Episode) -> None:
    [mine] = build_algorithm("rlhf_ppo").credit([attempt], RewardRules()) or []
    [other] = build_algorithm("ppo").credit([attempt], RewardRules()) or []

    assert mine.advantages_K.tolist() != other.advantages_K.tolist()
    assert float(other.advantages_K[2]) == pytest.approx(7.0 - 0.5)
    assert float(mine.advantages_K[2]) == pytest.approx(1.5 + 0.02 - 0.5)


def test_it_asks_for_a_critic_a_reference_and_a_reward_model() -> None:
    plan = build_algorithm("rlhf_ppo").plan

    assert (plan.needs_value, plan.needs_reference, plan.needs_reward_model) == (True, True, True)


def drift(token: int) -> float:
    """Nats from the reference to the policy at a token, counted through its attempt."""
    return 0.5 - 0.25 * (token % 4)


@pytest.fixture
def scored(told_groups: Groups) -> Groups:
    """The ragged attempts with a score, and logprobs of policy and reference that drift apart."""

    def anchored(episode: Episode, score: float) -> Episode:
        at, turns = 0, []
        for turn in episode.turns:
            apart_N = np.array([drift(token) for token in range(at, at + turn.num_tokens)])
            at += turn.num_tokens
            turns.append(replace(turn, logprobs_N=apart_N - 1.0, reference_logprobs_N=np.full(turn.num_tokens, -1.0)))
        return replace(episode, model_score=score, turns=tuple(turns))

    return [
        [anchored(one, score) for one, score in zip(group, scores, strict=True)]
        for group, scores in zip(told_groups, SCORES, strict=True)
    ]


def test_an_update_in_plain_loops_with_clips_counted(scored: Groups, ragged: list[list[Any]], train_on: Train) -> None:
    """Ragged attempts, one alone, a turn without tokens, equal and negative scores; the verdicts are not looked at."""
    tokens: list[float] = []
    for attempts, scores in zip(ragged, SCORES, strict=True):
        for one, score in zip(attempts, scores, strict=True):
            at, rewards = 0, []
            for count in one.tokens:
                rewards.append(-0.2 * sum(drift(token) for token in range(at, at + count)))
                at += count
            rewards[-1] += score
            credit, ahead = [0.0] * len(rewards), 0.0
            for k in reversed(range(len(rewards))):
                after = one.values[k + 1] if k + 1 < len(rewards) else 0.0
                ahead = rewards[k] + 0.95 * after - one.values[k] + 0.95 * 0.9 * ahead
                credit[k] = ahead
            tokens += [credit[k] for k, count in enumerate(one.tokens) for _ in range(count)]
    white = [(one - fmean(tokens)) / (pstdev(tokens) + 1e-8) for one in tokens]
    ratios = [0.5, 1.5, 1.1, 0.9, 1.3, 0.7]
    loss, clipped = 0.0, 0
    for at, one in enumerate(white):
        bounded = min(max(ratios[at % 6], 0.8), 1.2)
        loss -= min(ratios[at % 6] * one, bounded * one) / len(white)
        clipped += bounded * one < ratios[at % 6] * one

    found = train_on(
        build_algorithm("rlhf_ppo", {"beta": 0.2, "lam": 0.9}),
        *scored,
        ratio=lambda token: ratios[token % 6],
        rules=RewardRules(gamma=0.95),
    )

    assert [one for part in found.advantages for one in part] == pytest.approx(white, abs=1e-9)
    assert found.loss == pytest.approx(loss, abs=1e-9)
    assert found.stats["clipped_tokens"] == clipped > 0


def test_the_price_of_the_reference_is_paid_in_turns_and_counted(scored: Groups) -> None:
    """With beta 0 only the score is left; turns without tokens pay nothing for the reference either way."""

    def rewards(beta: float) -> list[float]:
        method = build_algorithm("rlhf_ppo", {"beta": beta, "lam": 0.0})
        free = [[replace(one, values_K=np.zeros(one.num_turns)) for one in group] for group in scored]
        return [a for group in free for one in method.credit(group, RewardRules()) or [] for a in one.advantages_K]

    paid, free = rewards(0.2), rewards(0.0)
    assert free == [0.0, 0.0, 1.5, 0.0, -0.75, -2.0, 0.4, 0.0, 0.0, 0.4]
    prices = [a - b for a, b in zip(paid, free, strict=True)]
    spent = [0.75, 0.0, 0.5, 0.0, 0.5, 0.75, 0.5, 0.5, 0.25, 0.0]  # 0.5, 0.25, 0, -0.25, 0.5, ... cut into turns
    assert prices == pytest.approx([-0.2 * nats for nats in spent])
    assert sum(price != 0 for price in prices) == 7


def test_an_attempt_that_nobody_scored_is_named(scored: Groups) -> None:
    [[_, lacking], *_] = scored
    with pytest.raises(ArgumentError, match=r"g0m1.*`model_score`"):
        build_algorithm("rlhf_ppo").credit([replace(lacking, model_score=None)], RewardRules())
