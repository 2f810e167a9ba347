"""GraphGPO against the printed graph: two ways of the same length are equal to it."""

from collections.abc import Callable
from math import sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def printed(make_known: Make) -> list[Episode]:
    return [
        make_known([0, 1], state=["s0", "s1"], success=True),
        make_known([0, 0], state=["s0", "s2"], success=False),
        make_known([0, 0, 0, 1], state=["s0", "s1", "s0", "s2"], success=True),
    ]


def episode_part(scores: list[float], counts: list[int]) -> list[float]:
    """(R - mean) / (sample deviation + eps) over scores, each counted so often."""
    rows = [score for score, count in zip(scores, counts, strict=True) for _ in range(count)]
    mean = sum(rows) / len(rows)
    std = sqrt(sum((row - mean) ** 2 for row in rows) / (len(rows) - 1))
    return [(score - mean) / (std + 1e-6) for score in scores]


@pytest.mark.parametrize(("cross_steps", "counts"), [(False, [1, 1, 1]), (True, [2, 2, 4])])
def test_advantages_of_the_printed_graph(make_known: Make, cross_steps: bool, counts: list[int]) -> None:
    found = advantages(
        build_algorithm("graphgpo", {"cross_steps": cross_steps}).credit(printed(make_known), RewardRules())
    )
    graph = [[0, 0.707107], [0, -0.707107], [0, -0.707107, 0, 0.707107]]
    for row, local, whole in zip(found, graph, episode_part([1.0, 0.0, 1.0], counts), strict=True):
        assert row == pytest.approx([whole + a for a in local], abs=1e-6)


@pytest.mark.parametrize("convention", ["recipe", "paper"])
def test_the_convention_changes_returns_by_a_factor_that_only_eps_sees(make_known: Make, convention: str) -> None:
    group = printed(make_known)
    alone = {"weight": 1.0, "convention": convention, "std": "none"}
    found = advantages(build_algorithm("graphgpo", alone).credit(group, RewardRules()))
    factor = 1.0 if convention == "recipe" else 0.1
    assert found[0][1] - found[0][0] == pytest.approx(factor * (10 - (10 + 0.1) / 2), abs=1e-9)
    scaled = advantages(build_algorithm("graphgpo", {"convention": convention}).credit(group, RewardRules()))
    assert scaled[0][1] - scaled[0][0] == pytest.approx(0.707107, abs=2e-6)


def test_at_a_fork_of_equal_lengths_it_is_blind_where_its_neighbour_is_not(make_known: Make) -> None:
    group = printed(make_known)
    own = advantages(build_algorithm("graphgpo").credit(group, RewardRules()))
    neighbour = advantages(build_algorithm("graphhca").credit(group, RewardRules()))
    assert own[2][0] == own[2][2]
    assert neighbour[2][0] - neighbour[2][2] == pytest.approx(2 * 0.866, abs=1e-3)


def test_without_a_success_only_the_rewards_differ(make_known: Make) -> None:
    group = [
        make_known([0, -1], state=["a", "b"], success=False, tokens=[0, 2]),
        make_known([0.0], state=["a"], success=False),
    ]
    found = advantages(build_algorithm("graphgpo").credit(group, RewardRules()))
    assert found == [pytest.approx([-sqrt(0.5)] * 2, abs=1e-5), pytest.approx([sqrt(0.5)], abs=1e-5)]


def test_equal_rewards_teach_by_the_graph_and_no_difference_teaches_nothing(make_known: Make) -> None:
    detour = [
        make_known([0, 0, 1], state=["a", "c", "b"], success=True),
        make_known([0, 1], state=["a", "b"], success=True),
    ]
    found = advantages(build_algorithm("graphgpo").credit(detour, RewardRules()))
    assert found[0][0] < 0 < found[1][0]
    same = [make_known([0, 1], state=["a", "b"], success=True)] * 2
    assert build_algorithm("graphgpo").credit(same, RewardRules()) is None
    assert build_algorithm("graphgpo").credit([], RewardRules()) is None


def test_what_is_missing_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T2: the method needs `success`"):
        build_algorithm("graphgpo").credit([make_known([1.0], id="T2", state=["a"])], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("graphgpo"), [0.3, -0.3], [1.0, -1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 2
