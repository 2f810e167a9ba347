"""TRACE's allocator: the budget goes where attempts are expected to disagree; the loss is GRPO's."""

from collections.abc import Callable

import pytest

from kifu.algorithms import build_algorithm
from kifu.algorithms.trace_budget import TraceBudget
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Loss

Make = Callable[..., Episode]


def test_roots_likely_to_disagree_are_taken_where_grpo_takes_all_alike() -> None:
    algorithm = TraceBudget(budget=12, root_share=0.5, rollouts=2)
    assert algorithm.roots([0.99, 0.5, 0.0, 0.4, 0.3]) == (0, 2, 0, 2, 2)
    assert sum(algorithm.roots([0.5] * 100)) == 6


def test_continuations_go_to_prefixes_likely_to_end_otherwise() -> None:
    algorithm = TraceBudget(budget=8, root_share=0.5)
    found = algorithm.prefixes([1.0, 1.0, 0.0], [0.2, 0.95, 0.6])
    assert sum(found) == 4
    assert found == (1, 0, 3) or found == (2, 0, 2)
    gains = {0: [0.8, 0.16, 0.032], 1: [0.05], 2: [0.6, 0.24, 0.096]}
    best = sorted((gain for row in gains.values() for gain in row), reverse=True)[:4]
    taken = [gain for at, count in enumerate(found) for gain in gains[at][:count]]
    assert sum(taken) == pytest.approx(sum(best))


def test_the_published_budget_is_the_default() -> None:
    algorithm = TraceBudget()
    assert (algorithm.budget, algorithm.rollouts) == (512, 2)
    assert len([count for count in algorithm.roots([0.5] * 200) if count]) == 128
    assert "not published" in " ".join(algorithm.card.notes)


def test_credit_is_the_group_relative_return(make_known: Make) -> None:
    group = [make_known([0, 1]), make_known([-1.0], tokens=[0]), make_known([0.0])]
    own = build_algorithm("trace_budget").credit(group, RewardRules())
    assert own is not None
    assert [credit.advantages_K.tolist() for credit in own] == [
        pytest.approx([1.0, 1.0], abs=1e-5),
        pytest.approx([-1.0], abs=1e-5),
        [0.0],
    ]


def test_equal_returns_and_one_member_carry_no_signal(make_known: Make) -> None:
    assert build_algorithm("trace_budget").credit([make_known([0.5])] * 3, RewardRules()) is None
    assert build_algorithm("trace_budget").credit([make_known([1.0])], RewardRules()) is None


def test_the_clip_holds_where_a_ratio_left_the_band(loss_of: Callable[..., Loss]) -> None:
    found = loss_of(build_algorithm("trace_budget"), [0.3, -0.3], [1.0, 1.0], turns=[0, 1])
    assert int(found.stats["clipped_tokens"]) == 1
