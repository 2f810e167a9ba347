"""IGPO against the printed example and plain loops over padded positions."""

from collections.abc import Callable
from math import exp

import numpy as np
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


def test_returns_are_built_of_the_printed_gains(make_known: Make) -> None:
    """Against a member that gains nothing, half of each return to go is left."""
    gained = make_known([0, 0, 0, 1.0], gold_logprob=[-3.0, -1.5, -1.8, -0.4])
    flat = make_known([0, 0, 0, 0], gold_logprob=[-1.0] * 4)
    found = advantages(build_algorithm("igpo").credit([gained, flat], RewardRules()))
    gains = [0.173343, -0.057831, 0.505021]
    expected = [(sum(gains[k:]) + 1.0) / 2 for k in range(4)]
    assert found[0] == pytest.approx(expected, abs=2e-6)
    assert found[1] == pytest.approx([-value for value in expected], abs=2e-6)


def padded(group: list[tuple[list[float], list[float], list[int]]], gamma: float) -> list[list[float]]:
    """Returns per token in a table padded with 0, minus the column's mean, as the released function does it."""
    rows = []
    for rewards, gold, lengths in group:
        paid = [r + (exp(gold[k + 1]) - exp(gold[k]) if k + 1 < len(gold) else 0.0) for k, r in enumerate(rewards)]
        back = [sum(gamma ** (j - k) * paid[j] for j in range(k, len(paid))) for k in range(len(paid))]
        rows.append([value for value, length in zip(back, lengths, strict=True) for _ in range(length)])
    width = max(map(len, rows))
    table = np.array([row + [0.0] * (width - len(row)) for row in rows])
    centred = table - table.mean(axis=0)
    return [centred[i, : len(row)].tolist() for i, row in enumerate(rows)]


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_the_baseline_of_a_position_mixes_turns_as_in_the_padded_table(make_known: Make, gamma: float) -> None:
    group = [
        ([0.0, 0.0, -1.0], [-2.0, -0.5, -0.1], [2, 0, 3]),
        ([0.5], [-1.0], [1]),
        ([0.0, 1.0], [-1.0, -3.0], [4, 4]),
    ]
    episodes = [make_known(rewards, gold_logprob=gold, tokens=lengths) for rewards, gold, lengths in group]
    found = build_algorithm("igpo", {"gamma": gamma}).credit(episodes, RewardRules())
    assert found is not None
    for credit, (_, _, lengths), expected in zip(found, group, padded(group, gamma), strict=True):
        assert credit.token_advantages_K is not None
        assert [part.size for part in credit.token_advantages_K] == lengths
        assert np.concatenate(credit.token_advantages_K).tolist() == pytest.approx(expected, abs=1e-12)
    assert found[2].token_advantages_K is not None
    assert len(set(found[2].token_advantages_K[0].tolist())) > 1, "tokens of one turn have different baselines"


def test_the_baseline_of_a_turn_compares_members_at_it(make_known: Make) -> None:
    group = [make_known([0, 1], gold_logprob=[-1.0, -1.0]), make_known([0.0], gold_logprob=[-1.0])]
    found = advantages(build_algorithm("igpo", {"baseline": "turn"}).credit(group, RewardRules()))
    assert found == [[0.5, 0.0], [-0.5]]


def test_a_group_without_any_difference_carries_no_signal(make_known: Make) -> None:
    same = [make_known([0, 1], gold_logprob=[-1.0, -0.5])] * 3
    assert build_algorithm("igpo").credit(same, RewardRules()) is None
    assert build_algorithm("igpo").credit(same[:1], RewardRules()) is None
    assert build_algorithm("igpo").credit([], RewardRules()) is None


def test_the_window_of_trace_sees_less_far_than_the_sum(make_known: Make) -> None:
    """A gain five turns later reaches the first turn here, and not there."""
    late = make_known([0] * 6, gold_logprob=[-3.0] * 5 + [-0.1], calls_tool=[True] * 5 + [False])
    flat = make_known([0] * 6, gold_logprob=[-3.0] * 6, calls_tool=[True] * 5 + [False])
    own = advantages(build_algorithm("igpo").credit([late, flat], RewardRules()))
    neighbour = advantages(build_algorithm("trace_turn_credit").credit([late, flat], RewardRules()))
    assert own[0][0] > 0.4
    assert neighbour[0][0] == 0.0


def test_an_unscored_turn_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T8, turn 0: the method needs `gold_logprob`"):
        build_algorithm("igpo").credit([make_known([0.0], id="T8")], RewardRules())


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("igpo"), [0.3, -0.3], [1.0, 1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
