"""Credit of the methods with a critic against plain loops: actor_critic and ppo share it."""

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Terms, ValueTerms

Make = Callable[..., Episode]
Groups = list[list[Episode]]
Train = Callable[..., Any]


def gae(
    rewards: list[float], values: list[float], worth: float, durations: list[float], *, gamma: float, lam: float
) -> list[float]:
    """A_k = sum_l (product of gamma^tau lam) delta_{k+l}, with delta_k = r_k + gamma^tau_k V_{k+1} - V_k."""
    following = [*values[1:], worth]
    delta = [r + gamma**tau * after - v for r, v, after, tau in zip(rewards, values, following, durations, strict=True)]
    found = []
    for start in range(len(rewards)):
        total, factor = 0.0, 1.0
        for at in range(start, len(rewards)):
            total += factor * delta[at]
            factor *= gamma ** durations[at] * lam
        found.append(total)
    return found


@pytest.mark.parametrize("name", ["actor_critic", "ppo"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cut_worth", [None, 0.4])
def test_credit_is_gae_over_turns_and_the_target_adds_the_value(
    make_episode: Make, name: str, lam: float, cut_worth: float | None
) -> None:
    rewards, values, durations = [0.0, 0.5, 1.0], [0.2, 0.5, 0.7], [1.0, 2.0, 1.0]
    episode = make_episode(rewards, values=values, cut_worth=cut_worth, durations=durations)

    found = build_algorithm(name, {"lam": lam}).credit([episode], RewardRules(gamma=0.9))

    expected = gae(rewards, values, cut_worth or 0.0, durations, gamma=0.9, lam=lam)
    assert found is not None
    assert found[0].advantages_K.tolist() == pytest.approx(expected, abs=1e-12)
    assert found[0].value_targets_K is not None
    assert found[0].value_targets_K.tolist() == pytest.approx(
        [a + v for a, v in zip(expected, values, strict=True)], abs=1e-12
    )


def test_with_lambda_1_the_advantage_is_return_minus_value(make_episode: Make) -> None:
    found = build_algorithm("actor_critic").credit(
        [make_episode([0.0, 0.0, 1.0], values=[0.2, 0.5, 0.7])], RewardRules(gamma=0.9)
    )

    assert found is not None
    assert found[0].advantages_K.tolist() == pytest.approx([0.81 - 0.2, 0.9 - 0.5, 1.0 - 0.7], abs=1e-12)


@pytest.mark.parametrize("name", ["actor_critic", "ppo"])
def test_a_single_attempt_is_credited_by_its_critic(make_episode: Make, name: str) -> None:
    algorithm = build_algorithm(name)

    assert algorithm.plan.needs_value
    assert not algorithm.plan.needs_group
    assert algorithm.credit([make_episode([1.0], values=[1.0])], RewardRules()) is not None


def test_an_update_in_plain_loops(told_groups: Groups, ragged: list[list[Any]], train_on: Train) -> None:
    """Every turn with a token weighs 1 / 8, shared among its tokens; the token's slope is - A w, whatever the ratio."""
    attempts = [one for group in ragged for one in group]
    turns = sum(1 for one in attempts for count in one.tokens if count)
    slopes = []
    for one in attempts:
        credit = gae(one.rewards, one.values, 0.0, [1.0] * len(one.rewards), gamma=0.9, lam=0.8)
        slopes += [[-credit[k] / turns / count for k, count in enumerate(one.tokens) for _ in range(count)]]

    ratios = [0.5, 1.5, 1.1]
    found = train_on(
        build_algorithm("actor_critic", {"lam": 0.8}),
        *told_groups,
        ratio=lambda token: ratios[token % 3],
        rules=RewardRules(gamma=0.9),
    )

    assert turns == 8
    assert [len(part) for part in found.gradient] == [6, 4, 2, 1, 3]
    for part, expected in zip(found.gradient, slopes, strict=True):
        assert part == pytest.approx(expected, abs=1e-12)
    flat = [slope for part in slopes for slope in part]
    assert found.loss == pytest.approx(sum(slope * (log(ratios[at % 3]) - 1.0) for at, slope in enumerate(flat)))


def test_equal_rewards_are_told_apart_by_the_critic_and_an_attempt_alone_is_credited(
    told_groups: Groups, train_on: Train
) -> None:
    alone, equal = train_on(build_algorithm("actor_critic"), told_groups[1]), told_groups[2]
    found = train_on(build_algorithm("actor_critic"), equal)

    assert alone.gradient == [pytest.approx([(1.0 + 0.1) / 2] * 2)]
    assert [part[0] for part in found.advantages] == pytest.approx([0.5 - 0.9, 0.5 + 0.1])


def test_ppo_stops_at_its_clip_where_the_same_credit_goes_on(told_groups: Groups, train_on: Train) -> None:
    """Nearest neighbour, with nothing else different: the clip, counted, takes tokens out that are trained here."""
    ppo = build_algorithm("ppo", {"lam": 1.0, "whiten": False, "average": "turn"})

    mine, other = (
        train_on(method, *told_groups, ratio=lambda token: 1.5 if token % 2 else 0.5)
        for method in (build_algorithm("actor_critic"), ppo)
    )

    assert mine.advantages == other.advantages
    assert mine.weights == other.weights
    stopped = sum(
        there == 0.0 != here
        for one, two in zip(mine.gradient, other.gradient, strict=True)
        for here, there in zip(one, two, strict=True)
    )
    assert stopped == other.stats["clipped_tokens"] > 0
    assert "clipped_tokens" not in mine.stats


def test_the_critics_word_decides_and_is_counted(told_groups: Groups, train_on: Train) -> None:
    """Tokens whose credit is not the return that followed: all but the two of the one turn whose value is 0."""
    mine = train_on(build_algorithm("actor_critic", {"average": "sum"}), *told_groups)
    other = train_on(build_algorithm("reinforce"), *told_groups)

    moved = [
        abs(here - there) > 1e-12
        for one, two in zip(mine.gradient, other.gradient, strict=True)
        for here, there in zip(one, two, strict=True)
    ]
    assert (sum(moved), len(moved)) == (14, 16)


def test_loss_of_policy_critic_and_entropy_in_one_line() -> None:
    """- A log pi w - c_H H w + c_V w (V - y)^2 / 2 over two tokens and two values."""

    def number(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    terms = Terms(
        logp_N=number(-0.5, -2.0),
        behaviour_logp_N=number(-1.0, -1.0),
        advantage_N=number(0.8, -0.4),
        weight_N=number(0.5, 0.5),
        turn_N=torch.tensor([0, 1]),
        sequence_N=torch.tensor([0, 0]),
        entropy_N=number(0.7, 1.1),
        values=ValueTerms(
            value_K=number(0.2, 0.9), target_K=number(1.0, 0.5), old_value_K=number(0.2, 0.9), weight_K=number(0.5, 0.5)
        ),
    )

    policy = -(0.8 * -0.5 + -0.4 * -2.0) * 0.5
    critic = 0.5 * 0.5 * ((0.2 - 1.0) ** 2 + (0.9 - 0.5) ** 2) / 2
    bonus = 0.01 * 0.5 * (0.7 + 1.1)
    assert build_algorithm("actor_critic").objective()(terms).total.item() == pytest.approx(policy + critic - bonus)


def test_without_values_the_attempt_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match=r"T7.*value"):
        build_algorithm("actor_critic").credit([make_known([1.0], id="T7")], RewardRules())
