"""GraphHCA against the printed graph and a chain solved by hand."""

from collections.abc import Callable
from math import log, sqrt

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


def test_advantages_of_the_printed_graph(make_known: Make) -> None:
    group = [
        make_known([0, 1], state=["s0", "s1"], success=True),
        make_known([0, 0], state=["s0", "s2"], success=False),
        make_known([0, 0, 0, 1], state=["s0", "s1", "s0", "s2"], success=True),
    ]
    found = advantages(build_algorithm("graphhca").credit(group, RewardRules()))
    mean, std = 2 / 3, sqrt(1 / 3)
    whole = [(reward - mean) / (std + 1e-6) for reward in (1, 0, 1)]
    local = [[0.866, 0.707], [-0.866, -0.707], [0.866, -0.707, -0.866, 0.707]]
    for row, a_E, graph in zip(found, whole, local, strict=True):
        assert row == pytest.approx([a_E + a for a in graph], abs=5e-4)


def test_a_fork_solved_by_hand(make_known: Make) -> None:
    """From `a`, one way succeeds, one fails, one leads to `b`, which succeeds; the failing turn has no tokens."""
    group = [
        make_known([-1.0], state=["a"], success=True),
        make_known([-2.0], state=["a"], success=False, tokens=[0]),
        make_known([0, -1.5], state=["a", "b"], success=True),
    ]
    gamma, floor = 0.9, 0.05
    phi_b = gamma
    phi_a = gamma * (1 + 0 + phi_b) / 3
    progress = [log(1 / phi_a), log(floor / phi_a), log(phi_b / phi_a)]
    mean = sum(progress) / 3
    expected = [value - mean for value in progress]
    options = {"graph_gamma": gamma, "floor": floor, "std": "none", "weight": 2.0}
    found = advantages(build_algorithm("graphhca", options).credit(group, RewardRules()))
    rewards = [0.5, -0.5, 0.0]
    assert [row[0] for row in found] == pytest.approx([r + 2 * e for r, e in zip(rewards, expected, strict=True)])
    assert found[2][1] == pytest.approx(0.0, abs=1e-12)


def test_chances_separate_what_distances_cannot(make_known: Make) -> None:
    """Both ways from `a` are one step from success; the second mostly fails."""
    group = [
        make_known([0, 1], state=["a", "safe"], success=True),
        make_known([0, 1], state=["a", "risky"], success=True),
        make_known([0, 0], state=["a", "risky"], success=False),
    ]
    own = advantages(build_algorithm("graphhca").credit(group, RewardRules()))
    neighbour = advantages(build_algorithm("graphgpo").credit(group, RewardRules()))
    assert own[0][0] > own[1][0]
    assert neighbour[0][0] == neighbour[1][0]


def test_a_group_without_any_difference_carries_no_signal(make_known: Make) -> None:
    same = [make_known([0, 1], state=["a", "b"], success=True)] * 2
    assert build_algorithm("graphhca").credit(same, RewardRules()) is None
    assert build_algorithm("graphhca").credit(same[:1], RewardRules()) is None
    assert build_algorithm("graphhca").credit([], RewardRules()) is None


def test_what_is_missing_is_named(make_known: Make) -> None:
    algorithm = build_algorithm("graphhca")
    with pytest.raises(ArgumentError, match="T2, turn 0: the method needs `state`"):
        algorithm.credit([make_known([1.0], id="T2", success=True)], RewardRules())
    with pytest.raises(ArgumentError, match="T3, `outcome`: the episode was cut"):
        algorithm.credit([make_known([1.0], id="T3", state=["a"], success=True, cut_worth=0.5)], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("graphhca"), [0.3, -0.3], [1.0, 1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
