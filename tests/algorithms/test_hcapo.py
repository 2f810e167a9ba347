"""HCAPO against plain loops around the printed hindsight values."""

from collections.abc import Callable
from math import exp, sqrt

import pytest

from kifu.algorithms import TurnCredit, build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Loss

Make = Callable[..., Episode]
PRINTED = [-1.0, -0.5, -2.0]


def advantages(found: list[TurnCredit] | None) -> list[list[float]]:
    assert found is not None
    return [credit.advantages_K.tolist() for credit in found]


def relative(value: float, others: list[float]) -> float:
    mean = sum(others) / len(others)
    squares = sum((other - mean) ** 2 for other in others)
    return 0.0 if squares == 0 else (value - mean) / (sqrt(squares / (len(others) - 1)) + 1e-6)


def values(logprobs: list[float], outcome: float) -> list[float]:
    """Q_t = clip(pi_t / mean pi, .8, 1.2) .95^(T-t) R."""
    pi = [exp(value / 5.0) for value in logprobs]
    mean, last = sum(pi) / len(pi), len(pi) - 1
    return [min(max(p / mean, 0.8), 1.2) * 0.95 ** (last - t) * outcome for t, p in enumerate(pi)]


def test_the_printed_hindsight_values_are_compared_over_the_group(make_known: Make) -> None:
    group = [
        make_known([0, 0, 1], hindsight_logprob=PRINTED, success=True),
        make_known([0.0], hindsight_logprob=[-1.0], success=False),
    ]
    printed = [0.925989, 1.077238, 0.840039]
    found = advantages(build_algorithm("hcapo").credit(group, RewardRules()))
    outcome = relative(1.0, [1.0, 0.0])
    for value, q in zip(found[0], printed, strict=True):
        assert value == pytest.approx(outcome + max(relative(q, [*printed, 0.0]), 0.0), abs=5e-6)
    assert found[1][0] == pytest.approx(-outcome + relative(0.0, [*printed, 0.0]), abs=5e-6)


@pytest.mark.parametrize("do_no_harm", [True, False])
def test_ragged_and_negative_members_as_in_plain_loops(make_known: Make, do_no_harm: bool) -> None:
    members = [(PRINTED, 2.0, True), ([-40.0, -0.1], -1.0, False), ([-3.0], 0.5, True)]
    group = [
        make_known([0.0] * (len(logs) - 1) + [outcome], hindsight_logprob=logs, success=success, id=f"T{at}")
        for at, (logs, outcome, success) in enumerate(members)
    ]
    table = [values(logs, outcome) for logs, outcome, _ in members]
    every = [q for row in table for q in row]
    found = advantages(build_algorithm("hcapo", {"do_no_harm": do_no_harm, "weight": 0.7}).credit(group, RewardRules()))
    for row, (_, outcome, success), got in zip(table, members, found, strict=True):
        a_out = relative(outcome, [2.0, -1.0, 0.5])
        micro = [relative(q, every) for q in row]
        kept = [max(m, 0.0) if success and do_no_harm else m for m in micro]
        assert got == pytest.approx([a_out + 0.7 * m for m in kept], abs=1e-12)


def test_doing_no_harm_drops_something_in_a_success(make_known: Make) -> None:
    group = [
        make_known([0, 1], hindsight_logprob=[-9.0, -0.1], success=True),
        *[make_known([1.0], hindsight_logprob=[-0.1], success=True) for _ in range(2)],
        make_known([0.0], hindsight_logprob=[-0.1], success=False),
    ]
    kept = advantages(build_algorithm("hcapo").credit(group, RewardRules()))
    raw = advantages(build_algorithm("hcapo", {"do_no_harm": False}).credit(group, RewardRules()))
    assert sum(a > b for a, b in zip(kept[0] + kept[1], raw[0] + raw[1], strict=True)) > 0
    assert kept[3] == raw[3]


def test_turns_of_one_trajectory_differ_where_grpo_has_one_number(make_known: Make) -> None:
    group = [
        make_known([0, 0, 1], hindsight_logprob=PRINTED, success=True),
        make_known([0.0], hindsight_logprob=[-1.0], success=False),
    ]
    assert len(set(advantages(build_algorithm("hcapo").credit(group, RewardRules()))[0])) > 1
    assert len(set(advantages(build_algorithm("grpo").credit(group, RewardRules()))[0])) == 1


def test_a_group_that_earned_nothing_carries_no_signal(make_known: Make) -> None:
    group = [make_known([0.0, 0.0], hindsight_logprob=[-1.0, -2.0], success=False) for _ in range(2)]
    assert build_algorithm("hcapo").credit(group, RewardRules()) is None
    assert build_algorithm("hcapo").credit([], RewardRules()) is None


def test_one_member_alone_is_compared_with_itself_only(make_known: Make) -> None:
    alone = make_known([0, -1], hindsight_logprob=[-1.0, -1.0], success=False)
    found = advantages(build_algorithm("hcapo").credit([alone], RewardRules()))
    assert found[0] == pytest.approx([relative(-0.95, [-0.95, -1.0]), relative(-1.0, [-0.95, -1.0])], abs=1e-9)


def test_what_is_missing_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T2, turn 1: the method needs `hindsight_logprob`"):
        build_algorithm("hcapo").credit(
            [make_known([0, 0], id="T2", hindsight_logprob=[-1.0, None], success=True)], RewardRules()
        )
    with pytest.raises(ArgumentError, match="T2: the method needs `success`"):
        build_algorithm("hcapo").credit([make_known([1.0], id="T2", hindsight_logprob=[-1.0])], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("hcapo"), [0.3, -0.3], [1.0, -1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 2
