"""Bi-level GAE: what the official function printed, as credit of tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]
VALUES = np.arange(1, 11) / 10


def printed(make_known: Make) -> Episode:
    return make_known([1, 1], tokens=[5, 5], values_N=[VALUES[:5], VALUES[5:]])


def test_advantages_and_targets_of_the_official_run(make_known: Make) -> None:
    found = build_algorithm("bilevel_gae").credit([printed(make_known)], RewardRules())
    assert found is not None
    tokens_KN = found[0].token_advantages_K
    assert tokens_KN is not None
    advantages = np.concatenate(tokens_KN)
    np.testing.assert_allclose(advantages, [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0], rtol=0, atol=1e-12)
    assert found[0].value_targets_K is not None
    assert found[0].value_targets_K.tolist() == pytest.approx([1.95, 1.0])
    assert found[0].advantages_K.tolist() == pytest.approx([1.65, 0.2])


def test_whitened_by_the_sample_deviation_they_are_the_printed_numbers(make_known: Make) -> None:
    found = build_algorithm("bilevel_gae").credit([printed(make_known)], RewardRules())
    assert found is not None
    advantages = np.concatenate(found[0].token_advantages_K or ())
    whitened = (advantages - advantages.mean()) / advantages.std(ddof=1)
    printed_numbers = [1.1880, 1.0596, 0.9311, 0.8027, 0.6743, -0.6743, -0.8027, -0.9311, -1.0596, -1.1880]
    np.testing.assert_allclose(whitened, printed_numbers, rtol=0, atol=6e-5)
    assert build_algorithm("bilevel_gae").plan.whiten


def test_options_reach_both_levels(make_known: Make) -> None:
    episode = make_known([1, 2], tokens=[3, 3], values_N=[np.full(3, 0.5), np.full(3, 0.2)])
    options = {"gamma": 0.9, "lam": 0.8, "turn_gamma": 0.95, "turn_lam": 0.8}
    found = build_algorithm("bilevel_gae", options).credit([episode], RewardRules())
    assert found is not None
    advantages = np.concatenate(found[0].token_advantages_K or ())
    np.testing.assert_allclose(advantages, [0.980867, 1.43176, 2.058, 0.89872, 1.276, 1.8], rtol=0, atol=5e-7)


def test_a_last_turn_of_reward_zero_is_a_turn(make_known: Make) -> None:
    """The released function raises on this input."""
    episode = make_known([1.0, 0.0], tokens=[1, 2], values_N=[np.array([0.5]), np.array([0.3, 0.1])])
    found = build_algorithm("bilevel_gae").credit([episode], RewardRules())
    assert found is not None
    last = -0.1
    first = 1.0 + 0.95 * 0.1 - 0.5 + 0.95 * last
    assert [part.tolist() for part in found[0].token_advantages_K or ()] == [
        pytest.approx([first]),
        pytest.approx([0.1 - 0.3 + (0.0 - 0.1), -0.1]),
    ]


def test_a_turn_without_tokens_is_left_out_and_its_reward_is_not(make_known: Make) -> None:
    values = [np.array([0.0]), np.empty(0)]
    found = build_algorithm("bilevel_gae").credit([make_known([0, -3], tokens=[1, 0], values_N=values)], RewardRules())
    assert found is not None
    assert [part.tolist() for part in found[0].token_advantages_K or ()] == [[-3.0], []]
    assert [found[0].keeps(0), found[0].keeps(1)] == [True, False]


def test_one_level_gives_other_advantages(make_known: Make) -> None:
    episode = make_known([1, 1], tokens=[2, 2], values=[0.1, 0.3], values_N=[VALUES[:2], VALUES[2:4]])
    own = build_algorithm("bilevel_gae").credit([episode], RewardRules())
    neighbour = build_algorithm("ppo").credit([episode], RewardRules())
    assert own is not None
    assert neighbour is not None
    assert own[0].advantages_K.tolist() != pytest.approx(neighbour[0].advantages_K.tolist(), abs=1e-3)


def test_a_missing_value_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T2, turn 0: the method needs `value` of every token"):
        build_algorithm("bilevel_gae").credit([make_known([1.0], id="T2")], RewardRules())


def test_ragged_attempts_in_plain_loops_with_clips_counted(make_known: Make, train_on: Callable[..., Any]) -> None:
    """One alone in its group, rewards below 0 and equal ones; first over turn ends, then over the tokens of a turn."""
    told = [
        ([0.0, 0.5, 1.0], [[0.1, 0.4], [0.3], [0.2, 0.0, 0.6]]),
        ([0.5, 1.0], [[0.9, -0.2], [0.3, 0.3]]),
        ([-1.0], [[0.2, 0.1]]),
    ]
    gamma, lam, turn_gamma, turn_lam = 0.95, 0.9, 0.8, 0.7
    tokens: list[float] = []
    for rewards, values in told:
        ends, ahead = [part[-1] for part in values], 0.0
        worths = [0.0] * len(rewards)
        for k in reversed(range(len(rewards))):
            after = ends[k + 1] if k + 1 < len(rewards) else 0.0
            ahead = rewards[k] + turn_gamma * after - ends[k] + turn_gamma * turn_lam * ahead
            worths[k] = ahead + ends[k]
        for worth, part in zip(worths, values, strict=True):
            credit, inner = [0.0] * len(part), 0.0
            for n in reversed(range(len(part))):
                paid = worth if n == len(part) - 1 else gamma * part[n + 1]
                inner = paid - part[n] + gamma * lam * inner
                credit[n] = inner
            tokens += credit
    episodes = [
        make_known(
            rewards, tokens=[len(part) for part in values], values_N=[np.array(part) for part in values], id=f"T{at}"
        )
        for at, (rewards, values) in enumerate(told)
    ]
    ratios = [0.5, 1.5, 1.1]
    stopped = sum(
        (one > 0 and ratios[at % 3] > 1.2) or (one < 0 and ratios[at % 3] < 0.8) for at, one in enumerate(tokens)
    )

    options = {
        "gamma": gamma, "lam": lam, "turn_gamma": turn_gamma, "turn_lam": turn_lam,
        "whiten": False, "clip_low": 0.2, "clip_high": 0.2,
    }  # fmt: skip
    method = build_algorithm("bilevel_gae", options)
    found = train_on(method, episodes[:2], episodes[2:], ratio=lambda token: ratios[token % 3])

    assert [one for part in found.advantages for one in part] == pytest.approx(tokens, abs=1e-12)
    assert found.stats["clipped_tokens"] == stopped > 0
