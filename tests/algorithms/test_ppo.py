"""What makes PPO itself: passes over the same rollouts, whitening, the clip."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.objectives import ClippedRatio, PolicyObjective, TokenRatio


def test_the_published_setting_makes_four_clipped_passes_over_whitened_advantages() -> None:
    algorithm = build_algorithm("ppo")
    objective = algorithm.objective()

    assert (algorithm.plan.epochs, algorithm.plan.whiten) == (4, True)
    assert isinstance(objective, PolicyObjective)
    assert objective.surrogate == ClippedRatio(level=TokenRatio(), low=0.2, high=0.2)
    assert objective.value is not None
    assert objective.value.clip is None


def test_without_its_coefficient_the_entropy_bonus_is_gone() -> None:
    objective = build_algorithm("ppo", {"entropy_coefficient": 0.0}).objective()

    assert isinstance(objective, PolicyObjective)
    assert objective.entropy is None
    assert not objective.needs_entropy


def test_an_update_in_plain_loops_with_clips_that_hold(
    make_known: Callable[..., Episode], train_on: Callable[..., Any]
) -> None:
    """Ragged attempts, one alone in its group, a turn without tokens, a negative reward, in loops."""
    told: list[tuple[list[float], list[float], list[int]]] = [
        ([0.0, 0.5, 1.0], [0.2, 0.4, 0.7], [2, 1, 3]),
        ([-1.0], [0.1], [2]),
        ([0.0, 0.0], [0.3, -0.2], [0, 4]),
    ]
    group = [make_known(r, values=v, tokens=n, id=f"T{at}") for at, (r, v, n) in enumerate(told)]
    ratios = [0.5, 1.5, 1.1, 0.9, 1.3, 0.7]

    found = train_on(build_algorithm("ppo"), group[:2], group[2:], ratio=lambda token: ratios[token % 6])

    tokens: list[float] = []
    for rewards, values, lengths in told:
        credit, ahead = [0.0] * len(rewards), 0.0
        for k in reversed(range(len(rewards))):
            after = values[k + 1] if k + 1 < len(rewards) else 0.0
            ahead = rewards[k] + after - values[k] + 0.95 * ahead
            credit[k] = ahead
        tokens += [credit[k] for k in range(len(rewards)) for _ in range(lengths[k])]
    mean = sum(tokens) / len(tokens)
    spread = (sum((one - mean) ** 2 for one in tokens) / len(tokens)) ** 0.5 + 1e-8
    white = [(one - mean) / spread for one in tokens]
    loss, clipped = 0.0, 0
    for at, one in enumerate(white):
        rho = ratios[at % 6]
        bounded = min(max(rho, 0.8), 1.2)
        loss -= min(rho * one, bounded * one) / len(white)
        clipped += bounded * one < rho * one
    assert [one for part in found.advantages for one in part] == pytest.approx(white, abs=1e-6)
    assert found.loss == pytest.approx(loss, abs=1e-6)
    assert found.stats["clipped_tokens"] == clipped > 0


def test_a_critic_teaches_where_equal_returns_silence_its_neighbour(
    make_known: Callable[..., Episode], train_on: Callable[..., Any]
) -> None:
    group = [make_known([0.0, 1.0], values=[0.2, before], tokens=[1, 1], id=f"T{before}") for before in (0.9, 0.1)]

    critic, compared = (train_on(build_algorithm(name), group) for name in ("ppo", "grpo"))

    assert critic.advantages[0] != critic.advantages[1]
    assert any(any(part) for part in critic.gradient)
    assert compared.advantages == []
