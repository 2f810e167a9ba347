"""AEPO: tokens count by their entropy, and a gaining token beyond the clip keeps its gradient."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kifu.algorithms.aepo import Aepo
from kifu.algorithms.agentic_reinforced_po import AgenticReinforcedPo
from kifu.credit import Episode
from kifu.credit.branching import DampedDraw, EntropyBranching, FixedStart, PreMonitored
from kifu.credit.entropy import entropy_scaled
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]
Train = Callable[..., Any]


def uncertain(episode: Episode, *entropies: Sequence[float]) -> Episode:
    turns = [
        replace(turn, num_tokens=len(own), entropies_N=np.array(own, dtype=np.float64))
        for turn, own in zip(episode.turns, entropies, strict=True)
    ]
    return replace(episode, turns=tuple(turns))


def test_the_scaling_is_as_printed() -> None:
    (found,) = entropy_scaled([0.8], [[np.array([1.0, 2.0, 3.0])]], weight=0.2)
    np.testing.assert_allclose(found[0], [0.64, 0.80, 0.96], atol=1e-8)


def test_every_tokens_advantage_is_as_in_plain_loops(make_attempt: Make) -> None:
    """Ragged turns, one empty, over two members; deviation with n - 1 over all tokens of the group."""
    group = [
        uncertain(make_attempt(1.0, [2, 0, 1], name="a"), [0.1, 0.7], [], [2.0]),
        uncertain(make_attempt(-3.0, [1], name="b"), [0.4]),
    ]
    every = [0.1, 0.7, 2.0, 0.4]
    mean = sum(every) / 4
    std = (sum((h - mean) ** 2 for h in every) / 3) ** 0.5 + 1e-8
    a = 2.0 / ((2.0**2 + 2.0**2) ** 0.5 + 1e-6)

    found = Aepo().credit(group, RewardRules())

    assert found is not None
    first, second = (credit.token_advantages_K for credit in found)
    assert first is not None
    assert second is not None
    np.testing.assert_allclose(first[0], [a * (1 + 0.2 * (h - mean) / std) for h in (0.1, 0.7)])
    assert first[1].size == 0
    np.testing.assert_allclose(first[2], [a * (1 + 0.2 * (2.0 - mean) / std)])
    np.testing.assert_allclose(second[0], [-a * (1 + 0.2 * (0.4 - mean) / std)])


def test_equal_entropies_leave_the_advantage_as_it_is(make_attempt: Make) -> None:
    group = [uncertain(make_attempt(r, [2], name=str(r)), [0.3, 0.3]) for r in (1.0, 0.0)]
    ours, other = Aepo().credit(group, RewardRules()), AgenticReinforcedPo().credit(group, RewardRules())
    assert ours is not None
    assert other is not None
    for credit, plain in zip(ours, other, strict=True):
        np.testing.assert_allclose(credit.tokens(0, 2), plain.tokens(0, 2))


def test_it_differs_from_its_neighbour_inside_a_turn(make_attempt: Make) -> None:
    group = [uncertain(make_attempt(r, [2], name=str(r)), [0.1, 0.9]) for r in (1.0, 0.0)]
    found = Aepo().credit(group, RewardRules())
    assert found is not None
    low, high = found[0].tokens(0, 2)
    assert 0 < low < high


def test_value_and_gradient_are_those_of_the_official_run(loss_of: Callable[..., Loss]) -> None:
    """Ratios 1.5, 1.5, .5, .5, 1.1 with advantages 1, -1, 1, -1, 1: the loss is -.1 either way."""
    log_ratios = np.log([1.5, 1.5, 0.5, 0.5, 1.1]).tolist()
    for method in (Aepo(), AgenticReinforcedPo()):
        found = loss_of(method, log_ratios, [1.0, -1.0, 1.0, -1.0, 1.0], turns=[0, 1, 2, 3, 4])
        assert found.total.item() == pytest.approx(-0.1)


def test_a_gaining_token_beyond_the_clip_keeps_its_gradient(make_attempt: Make, train_on: Train) -> None:
    group = [uncertain(make_attempt(r, [1], name=str(r)), [0.3]) for r in (1.0, 0.0)]
    ratios = [1.5, 1.0]
    ours = train_on(Aepo(std="none"), group, ratio=lambda token: ratios[token])
    other = train_on(AgenticReinforcedPo(std="none"), group, ratio=lambda token: ratios[token])
    assert ours.gradient[0] == [pytest.approx(-0.5 * 1.2 / 2)]
    assert other.gradient[0] == [0.0]
    assert ours.stats["clipped_tokens"] == other.stats["clipped_tokens"] == 1


@pytest.mark.parametrize("rewards", [[1.0], [0.5, 0.5]])
def test_a_group_that_compares_nothing_is_left_out(make_attempt: Make, rewards: list[float]) -> None:
    group = [uncertain(make_attempt(r, [1], name=str(at)), [0.3]) for at, r in enumerate(rewards)]
    assert Aepo().credit(group, RewardRules()) is None


def test_a_turn_without_entropies_is_named(make_attempt: Make) -> None:
    group = [make_attempt(1.0, [1], name="T1"), make_attempt(0.0, [1], name="T2")]
    with pytest.raises(ArgumentError, match="T1, turn 0: the method needs `entropy` of every token"):
        Aepo().credit(group, RewardRules())


def test_the_plan_is_the_papers_or_that_of_the_script() -> None:
    draw = DampedDraw(threshold=0.5, penalty=0.05)
    assert Aepo().plan.rollout == EntropyBranching(start=PreMonitored(slope=0.5), draw=draw)
    assert Aepo(initial_rollouts=8).plan.rollout == EntropyBranching(start=FixedStart(count=8), draw=draw)
    assert Aepo().plan.token_entropies
