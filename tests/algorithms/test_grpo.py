"""GRPO's credit against plain loops, and the groups that carry none."""

from collections.abc import Callable
from math import exp, sqrt
from typing import Any

import pytest
import torch

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Terms

Make = Callable[..., Episode]
RETURNS = [1.0, 0.0, 0.0, 0.5]


def expected(std: str, eps: float) -> list[float]:
    """A_i = (R_i - mean R) / (std R + eps), member by member."""
    mean = sum(RETURNS) / 4
    squares = sum((value - mean) ** 2 for value in RETURNS)
    divisor = {"none": 1.0, "sample": sqrt(squares / 3) + eps, "population": sqrt(squares / 4) + eps}[std]
    return [(value - mean) / divisor for value in RETURNS]


@pytest.mark.parametrize("std", ["none", "sample", "population"])
def test_every_turn_has_the_return_relative_to_the_group(make_episode: Make, std: str) -> None:
    lengths = [1, 2, 3, 4]
    group = [make_episode([0.0] * (length - 1) + [value]) for length, value in zip(lengths, RETURNS, strict=True)]

    found = build_algorithm("grpo", {"std": std, "eps": 0.01}).credit(group, RewardRules())

    assert found is not None
    for credit, length, advantage in zip(found, lengths, expected(std, 0.01), strict=True):
        assert credit.advantages_K.tolist() == pytest.approx([advantage] * length, abs=1e-12)
        assert credit.value_targets_K is None


def test_the_return_is_discounted_and_a_cut_is_worth_its_value(make_episode: Make) -> None:
    group = [make_episode([1.0, 2.0], cut_worth=4.0), make_episode([0.0])]

    found = build_algorithm("grpo", {"std": "none"}).credit(group, RewardRules(gamma=0.5))

    whole = 1.0 + 0.5 * 2.0 + 0.25 * 4.0
    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [[whole / 2, whole / 2], [-whole / 2]]


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1 + 0.2])
def test_equal_returns_carry_no_signal(make_episode: Make, value: float) -> None:
    group = [make_episode([0.0] * length + [value]) for length in range(4)]

    assert build_algorithm("grpo").credit(group, RewardRules()) is None


def test_one_member_alone_carries_no_signal(make_episode: Make) -> None:
    assert build_algorithm("grpo").credit([make_episode([1.0])], RewardRules()) is None


def test_a_penalty_against_the_reference_is_an_option_and_is_weighed_like_the_loss() -> None:
    """k3 of log-probabilities -1 and -1.5 is exp(-.5) - 1 + .5 per token; the gradient of the ratio part stays."""
    plain, anchored = build_algorithm("grpo"), build_algorithm("grpo", {"kl": 0.04})
    assert (plain.plan.needs_reference, anchored.plan.needs_reference) == (False, True)
    zeros = torch.zeros(2, dtype=torch.float64)
    terms = Terms(
        logp_N=zeros - 1.0,
        behaviour_logp_N=zeros - 1.0,
        advantage_N=zeros + 1.0,
        weight_N=zeros + 0.5,
        turn_N=zeros.long(),
        sequence_N=zeros.long(),
        reference_logp_N=zeros - 1.5,
    )

    difference = anchored.objective()(terms).total.item() - plain.objective()(terms).total.item()

    assert difference == pytest.approx(0.04 * (exp(-0.5) - 1 + 0.5), abs=1e-12)


def test_an_update_in_plain_loops_with_clips_counted(
    told_groups: list[list[Episode]], ragged: list[list[Any]], train_on: Callable[..., Any]
) -> None:
    """Ragged members, a turn without tokens, rewards below 0; an attempt alone and equal returns are left out.

    A trajectory weighs 1 / 2 and its tokens share that.
    """
    returns = [sum(one.rewards) for one in ragged[0]]
    mean = sum(returns) / 2
    spread = sqrt(sum((value - mean) ** 2 for value in returns)) + 1e-6
    ratios, at, loss, clipped = [0.5, 1.5, 1.1], 0, 0.0, 0
    for one, value in zip(ragged[0], returns, strict=True):
        advantage, count = (value - mean) / spread, sum(one.tokens)
        for _ in range(count):
            rho = ratios[at % 3]
            bounded = min(max(rho, 0.8), 1.2)
            loss -= min(rho * advantage, bounded * advantage) / count / 2
            clipped += bounded * advantage < rho * advantage
            at += 1

    found = train_on(build_algorithm("grpo"), *told_groups, ratio=lambda token: ratios[token % 3])

    assert [len(group.members) for group in found.update.groups] == [2, 0, 0]
    assert found.loss == pytest.approx(loss, abs=1e-12)
    assert found.stats["clipped_tokens"] == clipped > 0


def test_ppos_critic_tells_turns_of_one_attempt_apart_where_the_group_has_one_number(
    told_groups: list[list[Episode]], train_on: Callable[..., Any]
) -> None:
    """Nearest neighbour, both unwhitened and averaged alike: the baseline, and nothing else, is another one."""
    mine = train_on(build_algorithm("grpo", {"std": "none"}), told_groups[0])
    other = train_on(build_algorithm("ppo", {"lam": 1.0, "whiten": False, "average": "trajectory"}), told_groups[0])

    assert mine.weights == other.weights
    assert mine.advantages == [[1.25] * 6, [-1.25] * 4]
    assert other.advantages == [
        pytest.approx([1.5 - 0.2] * 2 + [1.5 - 0.4] + [1.0 - 0.7] * 3),
        pytest.approx([-0.8] * 4),
    ]
