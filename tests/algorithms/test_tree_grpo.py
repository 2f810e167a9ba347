"""Tree-GRPO: relative to the prompt, and to the tree."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kifu.algorithms.grpo import Grpo
from kifu.algorithms.tree_grpo import TreeGrpo
from kifu.credit import Episode
from kifu.credit.branching import RandomNodes, TreeExpansion
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]


def forest(make: Make, *trees: list[float]) -> list[Episode]:
    """One tree for each list of rewards."""
    return [
        replace(make(reward, [1, 2], name=f"{at}.{leaf}"), tree=f"tree {at}")
        for at, rewards in enumerate(trees)
        for leaf, reward in enumerate(rewards)
    ]


def firsts(method: TreeGrpo | Grpo, group: list[Episode]) -> list[float]:
    found = method.credit(group, RewardRules())
    assert found is not None
    for credit in found:
        assert credit.advantages_K.tolist() == [credit.advantages_K[0]] * 2
    return [float(credit.advantages_K[0]) for credit in found]


def test_advantages_are_as_printed(make_attempt: Make) -> None:
    found = firsts(TreeGrpo(), forest(make_attempt, [1.0, 0.0], [0.0, 0.0]))
    np.testing.assert_allclose(found, [2.207103, -1.207105, -0.499999, -0.499999], atol=2e-6)


@pytest.mark.parametrize("trees", [([0.3, -1.0, 2.0], [1.5, 1.5], [-4.0]), ([-1.0, -2.0], [-3.0])])
def test_both_parts_are_as_in_plain_loops(make_attempt: Make, trees: tuple[list[float], ...]) -> None:
    def normalized(values: list[float]) -> list[float]:
        mean = sum(values) / len(values)
        if len(values) < 2 or min(values) == max(values):
            return [0.0] * len(values)
        std = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        return [(value - mean) / (std + 1e-6) for value in values]

    across = normalized([value for tree in trees for value in tree])
    inside = [value for tree in trees for value in normalized(tree)]

    found = firsts(TreeGrpo(), forest(make_attempt, *trees))

    np.testing.assert_allclose(found, [a + b for a, b in zip(across, inside, strict=True)], atol=1e-12)


def test_it_differs_from_its_neighbour_by_the_tree(make_attempt: Make) -> None:
    group = forest(make_attempt, [1.0, 0.0], [1.0, 1.0])
    ours, other = firsts(TreeGrpo(), group), firsts(Grpo(), group)
    assert ours[0] - other[0] == pytest.approx(0.707106, abs=1e-6)
    assert ours[2:] == pytest.approx(other[2:])


def test_one_tree_alone_doubles_its_neighbours_advantage(make_attempt: Make) -> None:
    group = forest(make_attempt, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(firsts(TreeGrpo(), group), 2.0 * np.array(firsts(Grpo(), group)))


@pytest.mark.parametrize("trees", [([1.0],), ([0.0, 0.0], [0.0])])
def test_a_group_that_compares_nothing_is_left_out(make_attempt: Make, trees: tuple[list[float], ...]) -> None:
    assert TreeGrpo().credit(forest(make_attempt, *trees), RewardRules()) is None


def test_a_member_without_a_tree_is_named(make_attempt: Make) -> None:
    group = [make_attempt(1.0, [1], name="T7"), make_attempt(0.0, [1], name="T8")]
    with pytest.raises(ArgumentError, match="T7: the method needs `tree`"):
        TreeGrpo().credit(group, RewardRules())


def test_two_trees_of_three_leaves_are_the_plan() -> None:
    plan = TreeGrpo().plan
    assert plan.rollout == TreeExpansion(chains=2, rounds=1, picks=2, choice=RandomNodes())
    assert isinstance(plan.rollout, TreeExpansion)
    assert plan.rollout.total == 6
    assert (plan.needs_reference, TreeGrpo(kl=0.0).plan.needs_reference) == (True, False)


def test_clips_hold_where_ratios_left_the_band_and_are_counted(
    make_attempt: Make, train_on: Callable[..., Any]
) -> None:
    """Ragged leaves, a turn without tokens, rewards below 0: tokens whose gradient is 0, one by one."""
    sizes = [[2, 1], [1, 0], [3, 1]]
    group = [
        replace(make_attempt(reward, size, name=f"{at}"), tree="a" if at < 2 else "b")
        for at, (reward, size) in enumerate(zip([1.0, -1.0, -2.0], sizes, strict=True))
    ]
    ratios = [0.5, 1.5, 1.0]

    found = train_on(TreeGrpo(kl=0.0, dual_clip=None), group, ratio=lambda token: ratios[token % 3])

    signs = [np.sign(part[0]) for part in found.advantages]
    at, stopped = 0, []
    for sign, size in zip(signs, sizes, strict=True):
        for _ in range(sum(size)):
            stopped.append((sign > 0 and ratios[at % 3] > 1.2) or (sign < 0 and ratios[at % 3] < 0.8))
            at += 1
    assert [slope == 0.0 for part in found.gradient for slope in part] == stopped
    assert found.stats["clipped_tokens"] == sum(stopped) > 0
