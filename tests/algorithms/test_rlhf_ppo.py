"""RLHF's credit in loops, and where it leaves PPO."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Known = Callable[..., Episode]


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
