"""GiGPO against the printed example and plain loops in the paper's notation."""

from collections.abc import Callable
from math import sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]


def printed(make_known: Make) -> list[Episode]:
    return [
        make_known([0, 0, 10], state=["s0", "s1", "a"]),
        make_known([0, 0], state=["s0", "b"]),
        make_known([0, 10], state=["s0", "s1"]),
    ]


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def test_advantages_of_the_printed_example(make_known: Make) -> None:
    found = advantages(build_algorithm("gigpo").credit(printed(make_known), RewardRules()))
    assert [round(value, 6) for value in found[0]] == [5.707143, 2.607143, 2.857143]
    assert [round(value, 6) for value in found[1]] == [round(-7.142857142857143 - 6.175, 6), -7.142857]


def test_counting_every_trajectory_once_moves_the_episode_part_as_printed(make_known: Make) -> None:
    options = {"cross_steps": False, "weight": 0.0}
    found = advantages(build_algorithm("gigpo", options).credit(printed(make_known), RewardRules()))
    assert [round(row[0], 6) for row in found] == [3.333333, -6.666667, 3.333333]


def by_hand(group: list[tuple[list[float], list[str]]], *, gamma: float, omega: float, std: str) -> list[list[float]]:
    """A = A^E over all steps of the group, plus omega A^S over the steps in one state."""

    def relative(value: float, others: list[float]) -> float:
        mean = sum(others) / len(others)
        squares = sum((other - mean) ** 2 for other in others)
        if std == "none":
            return value - mean
        return 0.0 if squares == 0 else (value - mean) / (sqrt(squares / (len(others) - 1)) + 1e-6)

    steps = [
        (sum(rewards), sum(gamma ** (j - t) * rewards[j] for j in range(t, len(rewards))), states[t])
        for rewards, states in group
        for t in range(len(rewards))
    ]
    found, at = [], 0
    for rewards, states in group:
        row = []
        for state in states:
            score, back, _ = steps[at]
            same = [other for _, other, name in steps if name == state]
            a_E = relative(score, [other for other, _, _ in steps])
            a_S = 0.0 if len(same) == 1 else relative(back, same)
            row.append(a_E + omega * a_S)
            at += 1
        found.append(row)
        assert len(row) == len(rewards)
    return found


@pytest.mark.parametrize("std", ["none", "sample"])
@pytest.mark.parametrize("omega", [0.0, 0.5, 2.0])
def test_ragged_negative_and_revisiting_members_as_in_plain_loops(make_known: Make, std: str, omega: float) -> None:
    group = [
        ([0.0, -1.0, 0.0, 2.0], ["a", "b", "a", "c"]),
        ([-3.0], ["a"]),
        ([0.5, 0.5], ["b", "c"]),
    ]
    episodes = [make_known(rewards, state=states, tokens=[0] + [2] * (len(states) - 1)) for rewards, states in group]
    found = build_algorithm("gigpo", {"std": std, "weight": omega, "step_gamma": 0.8}).credit(episodes, RewardRules())
    for row, expected in zip(advantages(found), by_hand(group, gamma=0.8, omega=omega, std=std), strict=True):
        assert row == pytest.approx(expected, abs=1e-12)


def test_equal_rewards_still_teach_where_one_way_was_shorter(make_known: Make) -> None:
    group = [make_known([0, 0, 1], state=["a", "a", "b"]), make_known([0, 1], state=["a", "b"])]
    found = advantages(build_algorithm("gigpo").credit(group, RewardRules()))
    assert found[0][0] < 0 < found[1][0]
    assert build_algorithm("grpo").credit(group, RewardRules()) is None


def test_a_group_without_any_difference_carries_no_signal(make_known: Make) -> None:
    group = [make_known([0, 1], state=["a", "b"]), make_known([0, 1], state=["a", "b"])]
    assert build_algorithm("gigpo").credit(group, RewardRules()) is None
    assert build_algorithm("gigpo").credit([], RewardRules()) is None


def test_a_single_row_keeps_its_raw_score(make_known: Make) -> None:
    assert advantages(build_algorithm("gigpo").credit([make_known([3.0], state=["a"])], RewardRules())) == [[3.0]]
    alone = make_known([0.0, 3.0], state=["a", "b"])
    assert build_algorithm("gigpo").credit([alone], RewardRules()) is None


def test_similar_states_are_compared_only_where_it_is_asked(make_known: Make) -> None:
    group = [make_known([1.0], state=["you see a red door"]), make_known([0.0], state=["you see a red door."])]
    exact = advantages(build_algorithm("gigpo").credit(group, RewardRules()))
    similar = advantages(build_algorithm("gigpo", {"similarity": 0.95}).credit(group, RewardRules()))
    assert exact == [[0.5], [-0.5]]
    assert similar == [[1.0], [-1.0]]


def test_the_anchor_states_make_it_another_method_than_grpo(make_known: Make) -> None:
    group = printed(make_known)
    own = advantages(build_algorithm("gigpo").credit(group, RewardRules()))
    neighbour = advantages(build_algorithm("grpo").credit(group, RewardRules()))
    assert len(set(own[0])) == 3
    assert len(set(neighbour[0])) == 1


def test_a_turn_without_a_state_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T4, turn 1: the method needs `state`"):
        build_algorithm("gigpo").credit([make_known([0.0, 1.0], id="T4", state=["a", None])], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("gigpo"), [0.5, 0.0, -0.5], [1.0, 1.0, -1.0], turns=[0, 0, 0])
    assert int(found.stats["clipped_tokens"]) == 2
    assert float(found.total.detach()) == pytest.approx(-(1.2 + 1.0 - 0.8) / 3)
