"""TRACE turn credit against the printed example and plain loops."""

from collections.abc import Callable
from math import log, sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]
GOLD = [-4.0, -3.0, -3.5, -1.0, -0.5]
FLAT = [-2.0] * 5


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def group_of(make_known: Make) -> list[Episode]:
    """Four tool turns and a final answer; outcomes 1, 0, 0, 0; only the first member made progress."""
    return [
        make_known([0, 0, 0, 0, outcome], gold_logprob=gold, calls_tool=[True] * 4 + [False])
        for outcome, gold in [(1.0, GOLD), (0.0, FLAT), (0.0, FLAT), (0.0, FLAT)]
    ]


def test_advantages_of_the_printed_example(make_known: Make) -> None:
    found = advantages(build_algorithm("trace_turn_credit").credit(group_of(make_known), RewardRules()))
    assert [round(value, 6) for value in found[0][:4]] == [1.807355, 1.829333, 1.917662, 1.853274]
    assert round(found[0][4], 6) == 1.732047
    assert found[1] == pytest.approx([-1 / sqrt(3)] * 5, abs=2e-6)


def credit_by_hand(gold: list[float], a_out: float, *, fill: float | None) -> list[float]:
    """c_k with K = 3, gamma = .8, eps = .1, sum by sum."""
    d = [0.1 - value for value in gold]
    delta = [log(d[k] / d[k + 1]) for k in range(len(gold) - 1)]
    count, found = len(delta), []
    for k in range(count):
        h = min(k + 2, count - 1)
        above = sum(0.8 ** (u - k) * delta[u] for u in range(k, h + 1))
        c = above / sum(0.8 ** (u - k) for u in range(k, h + 1))
        if fill is not None and h == count - 1:
            c += fill * 0.8 ** (count - k) * a_out
        found.append(c)
    return found


@pytest.mark.parametrize("fill", [None, 2.0])
def test_ragged_members_as_in_plain_loops(make_known: Make, fill: float | None) -> None:
    golds = [[-3.0, -2.0, -2.5, -0.1], [-1.0, -4.0]]
    group = [
        make_known([0, 0, -1], gold_logprob=golds[0][:3], final_gold=golds[0][3], tokens=[0, 4, 1]),
        make_known([2.0], gold_logprob=golds[1][:1], final_gold=golds[1][1]),
    ]
    std = 1.5 + 1e-6
    outcomes = [-1.5 / std, 1.5 / std]
    found = advantages(build_algorithm("trace_turn_credit", {"fill": fill}).credit(group, RewardRules()))
    for row, gold, a_out in zip(found, golds, outcomes, strict=True):
        expected = [a_out + 0.2 * c for c in credit_by_hand(gold, a_out, fill=fill)]
        assert row == pytest.approx(expected, abs=1e-12)


def test_the_fill_reaches_only_windows_that_touch_the_end(make_known: Make) -> None:
    group = group_of(make_known)
    plain = advantages(build_algorithm("trace_turn_credit").credit(group, RewardRules()))
    filled = advantages(build_algorithm("trace_turn_credit", {"fill": 2.0}).credit(group, RewardRules()))
    moved = [abs(a - b) > 1e-9 for a, b in zip(plain[0], filled[0], strict=True)]
    assert moved == [False, True, True, True, False]


def test_a_turn_without_a_call_belongs_to_the_tool_turn_before_it(make_known: Make) -> None:
    parted = make_known([0, 0, 0], gold_logprob=[-3.0, -2.0, -1.0], calls_tool=[True, False, False])
    whole = make_known([0, 0], gold_logprob=[-3.0, -2.0], calls_tool=[True, False])
    found = advantages(build_algorithm("trace_turn_credit").credit([parted, whole], RewardRules()))
    expected = 0.2 * log(3.1 / 2.1)
    assert found == [pytest.approx([expected, 0.0, 0.0], abs=1e-12), pytest.approx([expected, 0.0], abs=1e-12)]


def test_equal_outcomes_still_teach_and_a_member_alone_too(make_known: Make) -> None:
    alone = [make_known([0.0], gold_logprob=[-1.0], final_gold=-2.0)]
    found = advantages(build_algorithm("trace_turn_credit").credit(alone, RewardRules()))
    assert found == [[pytest.approx(0.2 * log(1.1 / 2.1), abs=1e-12)]]
    silent = [make_known([1.0], gold_logprob=[-1.0], final_gold=-1.0)] * 2
    assert build_algorithm("trace_turn_credit").credit(silent, RewardRules()) is None


def test_an_unscored_prefix_is_named(make_known: Make) -> None:
    algorithm = build_algorithm("trace_turn_credit")
    with pytest.raises(ArgumentError, match="T5, turn 1: the method needs `gold_logprob`"):
        algorithm.credit([make_known([0, 0], id="T5", gold_logprob=[-1.0, None])], RewardRules())
    with pytest.raises(ArgumentError, match="T6: the method needs `final_gold_logprob`"):
        algorithm.credit([make_known([0.0], id="T6", gold_logprob=[-1.0])], RewardRules())
    with pytest.raises(ArgumentError, match="at most 0 nats"):
        algorithm.credit([make_known([0.0], gold_logprob=[0.5], final_gold=-1.0)], RewardRules())


def test_members_without_a_tool_turn_need_no_gold_answer(make_known: Make) -> None:
    group = [make_known([outcome], calls_tool=[False]) for outcome in (1.0, 0.0)]
    found = advantages(build_algorithm("trace_turn_credit").credit(group, RewardRules()))
    assert found == [[pytest.approx(1.0, abs=1e-5)], [pytest.approx(-1.0, abs=1e-5)]]


def test_it_differs_from_information_gain_on_the_printed_example(make_known: Make) -> None:
    group = group_of(make_known)
    own = advantages(build_algorithm("trace_turn_credit").credit(group, RewardRules()))[0]
    neighbour = advantages(build_algorithm("igpo", {"baseline": "turn"}).credit(group, RewardRules()))[0]
    assert own.index(max(own)) == 2
    assert neighbour.index(max(neighbour)) == 2 or neighbour.index(max(neighbour)) == 0
    assert max(abs(a - b) for a, b in zip(own, neighbour, strict=True)) > 0.1


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("trace_turn_credit"), [-0.5, 0.1], [-2.0, 2.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
