"""TARA against the printed table and plain loops in the paper's notation."""

from collections.abc import Callable
from math import sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]
CHECKS: list[list[float]] = [[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0]]


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def members(make_known: Make, checks: list[list[float]]) -> list[Episode]:
    return [make_known([0.0] * len(row), rewards=[{"golden": r} if r else {} for r in row]) for row in checks]


def test_advantages_of_the_printed_table(make_known: Make) -> None:
    found = advantages(build_algorithm("tara").credit(members(make_known, CHECKS), RewardRules()))
    assert [[round(value, 6) for value in row] for row in found] == [
        [1.080946, 1.249998, 0.866024],
        [0.306350, -1.749997, 0.866024],
        [-2.080944, 0.25, -0.866024],
        [0.693648, 0.25, -0.866024],
    ]


def test_the_population_deviation_gives_the_other_printed_row(make_known: Make) -> None:
    found = advantages(
        build_algorithm("tara", {"std": "population"}).credit(members(make_known, CHECKS), RewardRules())
    )
    assert [round(value, 6) for value in found[0]] == [1.248168, 1.443372, 0.999998]


def by_hand(checks: list[list[float]], *, gated: bool) -> list[list[float]]:
    """A = A_local + .5 A_future, turn by turn over the members that reached it."""

    def relative(i: int, t: int, table: list[list[float]]) -> float:
        same = [row[t] for row in table if len(row) > t]
        mean = sum(same) / len(same)
        squares = sum((value - mean) ** 2 for value in same)
        return 0.0 if squares == 0 else (table[i][t] - mean) / (sqrt(squares / (len(same) - 1)) + 1e-6)

    future = []
    for row in checks:
        sums = [sum(0.5**k * row[t + 1 + k] for k in range(len(row) - t - 1)) for t in range(len(row))]
        future.append([r * s if gated else s for r, s in zip(row, sums, strict=True)])
    return [
        [relative(i, t, checks) + 0.5 * relative(i, t, future) for t in range(len(row))] for i, row in enumerate(checks)
    ]


@pytest.mark.parametrize("gated", [True, False])
def test_ragged_and_negative_members_as_in_plain_loops(make_known: Make, gated: bool) -> None:
    checks = [[1.0, -1.0, 1.0, 1.0], [0.0], [1.0, 1.0], [0.5, 1.0, 0.0]]
    found = advantages(build_algorithm("tara", {"gated": gated}).credit(members(make_known, checks), RewardRules()))
    for row, expected in zip(found, by_hand(checks, gated=gated), strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


def test_the_gate_is_what_takes_the_future_from_a_wrong_turn(make_known: Make) -> None:
    checks: list[list[float]] = [[0, 1], [0, 0], [1, 0]]
    gated = advantages(build_algorithm("tara").credit(members(make_known, checks), RewardRules()))
    free = advantages(build_algorithm("tara", {"gated": False}).credit(members(make_known, checks), RewardRules()))
    assert gated[0][0] == gated[1][0]
    assert free[0][0] > free[1][0]


def test_the_named_component_alone_is_the_check(make_known: Make) -> None:
    group = [make_known([0.0], rewards=[{"golden": a, "noise": b}]) for a, b in ((1.0, 0.0), (0.0, 1.0))]
    assert build_algorithm("tara").credit(group, RewardRules()) is None
    found = advantages(build_algorithm("tara", {"component": "golden"}).credit(group, RewardRules()))
    assert found[0][0] > 0 > found[1][0]


def test_a_group_without_any_difference_carries_no_signal(make_known: Make) -> None:
    assert build_algorithm("tara").credit(members(make_known, [[1, 0], [1, 0]]), RewardRules()) is None
    assert build_algorithm("tara").credit(members(make_known, [[1, 1]]), RewardRules()) is None
    assert build_algorithm("tara").credit(members(make_known, [[], []]), RewardRules()) is None


def test_later_turns_count_where_mt_grpo_looks_at_the_first_only(make_known: Make) -> None:
    group = [make_known([0, 0], outcome=0.0, rewards=[{}, {"golden": paid}]) for paid in (1.0, 0.0)]
    own = advantages(build_algorithm("tara").credit(group, RewardRules()))
    assert own[0][1] > 0 > own[1][1]
    assert build_algorithm("mt_grpo").credit(group, RewardRules()) is None


def test_an_episode_of_which_no_turn_is_known_is_refused() -> None:
    bare = Episode(rewards_K=[1.0], terminated=True, id="T3")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="T3: the method needs `rewards` of every turn"):
        build_algorithm("tara").credit([bare], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("tara"), [0.3, 0.1], [1.0, 1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
