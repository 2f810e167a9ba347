"""Credit of the methods with a critic against plain loops: actor_critic and ppo share it."""

from collections.abc import Callable

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]


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
