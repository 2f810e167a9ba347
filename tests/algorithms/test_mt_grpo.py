"""MT-GRPO against the printed example and plain loops: what stands before the first tool result gets turn credit."""

from collections.abc import Callable
from math import sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]


def relative(values: list[float]) -> list[float]:
    """(x - mean) / (sample deviation + 1e-4)."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    if squares == 0:
        return [0.0] * len(values)
    return [(value - mean) / (sqrt(squares / (len(values) - 1)) + 1e-4) for value in values]


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def printed(make_known: Make) -> list[Episode]:
    """Turn rewards 1, 1, 0, 0 and outcomes 1, 0, 0, 0, each with a tool turn, another one, and an answer."""
    return [
        make_known(
            [0.0, 0.0, outcome],
            outcome=outcome,
            rewards=[{"found": turn} if turn else {}, {"found": 5.0}, {}],
            calls_tool=[True, True, False],
        )
        for turn, outcome in [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    ]


def test_advantages_of_the_printed_example(make_known: Make) -> None:
    found = advantages(build_algorithm("mt_grpo").credit(printed(make_known), RewardRules()))
    assert [round(row[0], 6) for row in found] == [2.365575, 0.365975, -1.365775, -1.365775]
    assert [round(row[1], 4) for row in found] == [1.4997, -0.4999, -0.4999, -0.4999]
    assert [row[1] for row in found] == [row[2] for row in found]


def test_the_turn_part_as_printed(make_known: Make) -> None:
    found = advantages(build_algorithm("mt_grpo").credit(printed(make_known), RewardRules()))
    assert [round(row[0] - row[1], 6) for row in found] == [0.865875, 0.865875, -0.865875, -0.865875]


def test_ragged_members_follow_the_place_of_their_first_tool_turn(make_known: Make) -> None:
    group = [
        make_known([0, -1], outcome=-1.0, rewards=[{"a": 0.5}, {}], calls_tool=[True, False], tokens=[0, 3]),
        make_known([0, 0, 2], outcome=2.0, rewards=[{}, {"a": -1.0, "b": 3.0}, {}], calls_tool=[False, True, False]),
        make_known([1], outcome=1.0, rewards=[{"a": 9.0}], calls_tool=[False]),
    ]
    turn, outcome = [0.5, 2.0, 0.0], [-1.0, 2.0, 1.0]
    a_turn, a_outcome = relative(turn), relative(outcome)
    a_both = relative([t + o for t, o in zip(turn, outcome, strict=True)])

    found = advantages(build_algorithm("mt_grpo", {"coefficient": 0.3}).credit(group, RewardRules()))

    assert found[0] == pytest.approx([a_outcome[0] + 0.3 * a_turn[0], a_outcome[0]], abs=1e-12)
    assert found[1] == pytest.approx([a_outcome[1] + 0.3 * a_turn[1]] * 2 + [a_outcome[1]], abs=1e-12)
    assert found[2] == pytest.approx([a_both[2]], abs=1e-12)


def test_one_component_can_be_the_turn_reward(make_known: Make) -> None:
    group = [
        make_known([0], outcome=0.0, rewards=[{"a": 1.0, "b": -1.0}]),
        make_known([0], outcome=0.0, rewards=[{"a": 0.0}]),
    ]
    assert build_algorithm("mt_grpo").credit(group, RewardRules()) is None
    found = advantages(build_algorithm("mt_grpo", {"component": "a"}).credit(group, RewardRules()))
    assert found[0][0] == pytest.approx(relative([1.0, 0.0])[0], abs=1e-12)


def test_a_member_nobody_judged_takes_no_part(make_known: Make) -> None:
    judged = [make_known([0], outcome=value, rewards=[{}]) for value in (1.0, 0.0)]
    unjudged = make_known([0], rewards=[{"a": 100.0}])
    found = build_algorithm("mt_grpo").credit([*judged, unjudged], RewardRules())
    assert found is not None
    assert [credit.keeps(0) for credit in found] == [True, True, False]
    assert advantages(found)[:2] == advantages(build_algorithm("mt_grpo").credit(judged, RewardRules()))


def test_a_group_without_any_difference_carries_no_signal(make_known: Make) -> None:
    same = [make_known([0.7], outcome=0.7, rewards=[{"a": 0.1}]) for _ in range(3)]
    assert build_algorithm("mt_grpo").credit(same, RewardRules()) is None
    assert build_algorithm("mt_grpo").credit(same[:1], RewardRules()) is None


def test_equal_outcomes_still_teach_where_grpo_is_silent(make_known: Make) -> None:
    group = [make_known([0, 0], outcome=0.0, rewards=[{"a": paid}, {}]) for paid in (1.0, 0.0)]
    own = advantages(build_algorithm("mt_grpo").credit(group, RewardRules()))
    assert own[0][0] > 0 == own[0][1]
    assert build_algorithm("grpo").credit(group, RewardRules()) is None


def test_an_episode_of_which_no_turn_is_known_is_refused() -> None:
    bare = Episode(rewards_K=[1.0], terminated=True, id="T3", outcome=1.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="T3: the method needs `calls_tool` of every turn"):
        build_algorithm("mt_grpo").credit([bare], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("mt_grpo"), [0.5, 0.1], [2.0, 2.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
