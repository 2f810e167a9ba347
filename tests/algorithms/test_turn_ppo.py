"""Turn-level PPO: the credit is GAE over turns; the ratio and the weight belong to the turn."""

from collections.abc import Callable
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch

from kifu.algorithms import Algorithm, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Loss, PolicyObjective, ValueTerms, token_weights
from kifu.objectives.contract import Terms

Make = Callable[..., Episode]
Measure = Callable[..., Loss]


@pytest.mark.parametrize(
    ("lam", "printed"), [(0.95, [0.76075, 0.485, 0.3]), (1.0, [0.8, 0.5, 0.3]), (0.0, [0.3, 0.2, 0.3])]
)
def test_advantages_of_the_printed_example(make_known: Make, lam: float, printed: list[float]) -> None:
    episode = make_known([0, 0, 1], values=[0.2, 0.5, 0.7])
    found = build_algorithm("turn_ppo", {"lam": lam}).credit([episode], RewardRules())
    assert found is not None
    assert found[0].advantages_K.tolist() == pytest.approx(printed, abs=1e-12)
    assert found[0].value_targets_K is not None
    assert found[0].value_targets_K.tolist() == pytest.approx(
        [a + v for a, v in zip(printed, [0.2, 0.5, 0.7], strict=True)], abs=1e-12
    )


def without_value(algorithm: Algorithm) -> PolicyObjective:
    objective = algorithm.objective()
    assert isinstance(objective, PolicyObjective)
    return replace(objective, value=None)


def terms(log_ratios: list[float], advantages: list[float], turns: list[int]) -> Terms:
    count = len(log_ratios)
    behaviour_N = torch.full((count,), -2.0, dtype=torch.float64)
    return Terms(
        logp_N=(behaviour_N + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        behaviour_logp_N=behaviour_N,
        advantage_N=torch.tensor(advantages, dtype=torch.float64),
        weight_N=torch.full((count,), 1.0 / count, dtype=torch.float64),
        turn_N=torch.tensor(turns),
        sequence_N=torch.zeros(count, dtype=torch.int64),
    )


def test_the_ratio_of_a_turn_is_the_geometric_mean_as_printed() -> None:
    found = without_value(build_algorithm("turn_ppo"))(terms([0.3, -0.1, 0.1], [1.0] * 3, [0, 0, 0]))
    assert round(-float(found.total.detach()), 6) == 1.105171
    assert -float(found.total.detach()) != pytest.approx(exp(0.3))


def test_tokens_of_a_turn_are_clipped_together_and_the_count_says_so() -> None:
    given = terms([0.9, -0.1, 0.05, 0.9], [1.0, 1.0, 1.0, -1.0], [0, 0, 1, 1])
    by_turn = without_value(build_algorithm("turn_ppo"))(given)
    by_token = without_value(build_algorithm("turn_ppo", {"ratio": "token"}))(given)

    first, second = exp(0.4), exp(0.475)
    turn_gain = (2 * min(first, 1.2) + 1.2 - second) / 4
    token_gain = (1.2 + exp(-0.1) + exp(0.05) - exp(0.9)) / 4
    assert -float(by_turn.total.detach()) == pytest.approx(turn_gain, abs=1e-12)
    assert -float(by_token.total.detach()) == pytest.approx(token_gain, abs=1e-12)
    assert int(by_turn.stats["clipped_tokens"]) == 3
    assert int(by_token.stats["clipped_tokens"]) == 1


def test_every_turn_weighs_the_same_where_ppo_weighs_tokens() -> None:
    turns_BN = [torch.tensor([0, 0, 0, 1]).numpy()]
    own = token_weights(build_algorithm("turn_ppo").reduction, turns_BN=turns_BN)[0]
    neighbour = token_weights(build_algorithm("ppo").reduction, turns_BN=turns_BN)[0]
    assert own.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    assert neighbour.tolist() == [0.25] * 4


def test_the_critic_is_regressed_on_the_target() -> None:
    objective = build_algorithm("turn_ppo", {"value_coefficient": 2.0}).objective()
    numbers = [torch.tensor([value], dtype=torch.float64) for value in (0.5, 1.5, 0.4, 1.0)]
    values = ValueTerms(value_K=numbers[0], target_K=numbers[1], old_value_K=numbers[2], weight_K=numbers[3])
    found = objective(replace(terms([0.0], [0.0], [0]), values=values))
    assert float(found.total.detach()) == pytest.approx(2.0 * 0.5)


@pytest.mark.parametrize("rewards", [[-1.0], [0.0, 0.0], [0.5, -2.0, 1.0]])
def test_one_member_alone_is_credited_whatever_it_earned(make_known: Make, rewards: list[float]) -> None:
    values = [0.1 * at for at in range(len(rewards))]
    found = build_algorithm("turn_ppo", {"lam": 1.0}).credit([make_known(rewards, values=values)], RewardRules())
    assert found is not None
    expected = [sum(rewards[at:]) - value for at, value in enumerate(values)]
    assert found[0].advantages_K.tolist() == pytest.approx(expected, abs=1e-12)
    assert build_algorithm("turn_ppo").plan.needs_value


def test_ragged_attempts_in_plain_loops_with_clips_counted(
    told_groups: list[list[Episode]], ragged: list[list[Any]], train_on: Callable[..., Any]
) -> None:
    """One alone, equal rewards, some below 0, turns without tokens: min(rho A, clip(rho) A) / turns, a turn at once."""
    turns = [(one, k, count) for group in ragged for one in group for k, count in enumerate(one.tokens) if count]
    ratios, at, loss, clipped = [0.5, 1.5, 1.1], 0, 0.0, 0
    for one, k, count in turns:
        after = [*one.values[k + 1 :], 0.0]
        delta = [r + v - now for r, v, now in zip(one.rewards[k:], after, one.values[k:], strict=True)]
        advantage = sum(0.9**j * d for j, d in enumerate(delta))
        rho = 1.0
        for _ in range(count):
            rho *= ratios[at % 3] ** (1 / count)
            at += 1
        bounded = min(max(rho, 0.8), 1.2)
        loss -= min(rho * advantage, bounded * advantage) / len(turns)
        clipped += count * (bounded * advantage < rho * advantage)

    method = build_algorithm("turn_ppo", {"lam": 0.9, "whiten": False, "clip_low": 0.2, "clip_high": 0.2})
    found = train_on(method, *told_groups, ratio=lambda token: ratios[token % 3])

    assert found.loss == pytest.approx(loss, abs=1e-12)
    assert found.stats["clipped_tokens"] == clipped > 0
