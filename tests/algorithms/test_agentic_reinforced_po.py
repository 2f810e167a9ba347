"""Agentic Reinforced Policy Optimization: leaves compared as a group, shared segments softly or hard."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kifu.algorithms.agentic_reinforced_po import AgenticReinforcedPo
from kifu.algorithms.grpo import Grpo
from kifu.credit import BranchPoint, Episode
from kifu.credit.branching import EntropyBranching, FixedStart, PlainDraw
from kifu.credit.reading import RewardRules
from kifu.objectives import TokenMean

Make = Callable[..., Episode]
Train = Callable[..., Any]
HARD = AgenticReinforcedPo(attribution="hard")


def branched(episode: Episode, parent: str, turn: int) -> Episode:
    return replace(episode, branch=BranchPoint(parent=parent, turn=turn))


def leaves(make: Make, rewards: list[float], lengths: list[list[int]], *, sharing: tuple[int, ...]) -> list[Episode]:
    """Members T0, T1, …; those in ``sharing`` share their first turn with the first of them."""
    found = [make(reward, own, name=f"T{at}") for at, (reward, own) in enumerate(zip(rewards, lengths, strict=True))]
    return [
        branched(episode, f"T{sharing[0]}", 1) if at in sharing[1:] else episode for at, episode in enumerate(found)
    ]


def test_soft_advantages_are_as_printed(make_attempt: Make) -> None:
    for rewards, printed in (
        ([1.0, 1.0, 0.0, 0.0], [0.866024, 0.866024, -0.866024, -0.866024]),
        ([1.1, 1.0, 0.0, -1.0], [0.838020, 0.736442, -0.279340, -1.295121]),
    ):
        group = leaves(make_attempt, rewards, [[1, 1]] * 4, sharing=(0, 2))
        found = AgenticReinforcedPo().credit(group, RewardRules())
        assert found is not None
        for credit, value in zip(found, printed, strict=True):
            np.testing.assert_allclose(credit.advantages_K, [value, value], atol=1e-6)


@pytest.mark.parametrize(
    ("rewards", "sharing", "printed"),
    [
        ([1.0, 1.0, 0.0, 0.0], (0, 1), 0.866024),
        ([1.0, 1.0, 0.0, 0.0], (0, 2), 0.0),
        ([1.0, 1.0, 0.0, 0.0], (0, 2, 3), -0.288675),
        ([1.1, 1.0, 0.0, -1.0], (0, 1), 0.787231),
        ([1.1, 1.0, 0.0, -1.0], (1, 2), 0.228551),
    ],
)
def test_a_hard_shared_segment_is_as_printed(
    make_attempt: Make, rewards: list[float], sharing: tuple[int, ...], printed: float
) -> None:
    group = leaves(make_attempt, rewards, [[1, 1]] * 4, sharing=sharing)
    soft, hard = AgenticReinforcedPo().credit(group, RewardRules()), HARD.credit(group, RewardRules())
    assert soft is not None
    assert hard is not None
    for at in range(4):
        first = printed if at in sharing else float(soft[at].advantages_K[0])
        np.testing.assert_allclose(hard[at].advantages_K, [first, soft[at].advantages_K[1]], atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "soft", "hard"), [([[1, 1]] * 4, 0.0, 0.0), ([[1, 1], [1, 1], [1, 3], [1, 1]], -0.0541, 0.0)]
)
def test_the_gradient_on_a_shared_token_is_as_printed(
    make_attempt: Make, train_on: Train, lengths: list[list[int]], soft: float, hard: float
) -> None:
    """Leaves 0 and 2 share one token; their two terms add up on it. Mean over each leaf's tokens, then over leaves."""
    group = leaves(make_attempt, [1.0, 1.0, 0.0, 0.0], lengths, sharing=(0, 2))
    for method, printed in ((AgenticReinforcedPo(), soft), (HARD, hard)):
        found = train_on(replace(method, average="trajectory"), group)
        assert found.gradient[0][0] + found.gradient[2][0] == pytest.approx(printed, abs=5e-5)


def test_soft_and_hard_are_one_where_every_leafs_tokens_weigh_the_same(make_attempt: Make, train_on: Train) -> None:
    """At ratio 1, under the mean over tokens, whatever the lengths: the shared token's terms have one sum."""
    group = leaves(make_attempt, [1.0, 0.3, 0.0, -2.0], [[2, 1], [1, 1], [2, 3], [2, 4]], sharing=(0, 2, 3))
    soft, hard = (train_on(method, group).gradient for method in (AgenticReinforcedPo(), HARD))
    for token in range(2):
        assert sum(soft[at][token] for at in (0, 2, 3)) == pytest.approx(sum(hard[at][token] for at in (0, 2, 3)))
    assert soft[0][0] != pytest.approx(hard[0][0])


def test_nested_branches_are_credited_as_by_hand(make_attempt: Make) -> None:
    """T1 leaves T0 at turn 1; T2 leaves T1 at turn 2: turn 0 is of three leaves, turn 1 of T1 is of two."""
    rewards = [2.0, 0.0, 1.0]
    group = [
        make_attempt(rewards[0], [1, 0], name="T0"),
        branched(make_attempt(rewards[1], [1, 2, 1], name="T1"), "T0", 1),
        branched(make_attempt(rewards[2], [1, 2, 3], name="T2"), "T1", 2),
    ]
    std = np.std(rewards, ddof=1) + 1e-6
    a, b, c = ((reward - 1.0) / std for reward in rewards)

    found = HARD.credit(group, RewardRules())

    assert found is not None
    np.testing.assert_allclose(found[0].advantages_K, [(a + b + c) / 3, a], atol=1e-12)
    np.testing.assert_allclose(found[1].advantages_K, [(a + b + c) / 3, (b + c) / 2, b], atol=1e-12)
    np.testing.assert_allclose(found[2].advantages_K, [(a + b + c) / 3, (b + c) / 2, c], atol=1e-12)


@pytest.mark.parametrize("rewards", [[1.0], [0.5, 0.5, 0.5], [-1.0, -1.0]])
@pytest.mark.parametrize("method", [AgenticReinforcedPo(), HARD])
def test_a_group_that_compares_nothing_is_left_out(
    make_attempt: Make, method: AgenticReinforcedPo, rewards: list[float]
) -> None:
    group = leaves(make_attempt, rewards, [[1, 1]] * len(rewards), sharing=tuple(range(len(rewards))))
    assert method.credit(group, RewardRules()) is None


def test_hard_attribution_differs_from_its_neighbour(make_attempt: Make) -> None:
    group = leaves(make_attempt, [1.0, 0.0, 0.0], [[1, 1]] * 3, sharing=(0, 1))
    ours, other = HARD.credit(group, RewardRules()), Grpo().credit(group, RewardRules())
    assert ours is not None
    assert other is not None
    assert ours[0].advantages_K[0] != pytest.approx(other[0].advantages_K[0])
    assert ours[0].advantages_K[1] == pytest.approx(other[0].advantages_K[1])


def test_the_dual_clip_holds_far_losses(make_attempt: Make, train_on: Train) -> None:
    group = [make_attempt(1.0, [1], name="a"), make_attempt(0.0, [1], name="b")]
    found = train_on(AgenticReinforcedPo(std="none"), group, ratio=lambda token: (1.0, 5.0)[token])
    assert found.gradient[1] == [0.0]
    assert found.stats["clipped_tokens"] == 1
    assert found.loss == pytest.approx(-(0.5 * 1.0 - 0.5 * 3.0) / 2)
    free = train_on(AgenticReinforcedPo(std="none", dual_clip=None), group, ratio=lambda token: (1.0, 5.0)[token])
    assert free.gradient[1] == [pytest.approx(0.5 * 5.0 / 2)]


def test_the_defaults_are_those_of_the_scripts() -> None:
    method = AgenticReinforcedPo()
    assert isinstance(method.reduction, TokenMean)
    assert method.plan.rollout == EntropyBranching(
        start=FixedStart(count=8), beam=2, weight=0.2, draw=PlainDraw(probability=0.5), head=20, side="after_result"
    )
