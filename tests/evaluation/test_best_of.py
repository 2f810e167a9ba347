"""Best-of-N against every subset drawn by hand, and which tasks may count."""

from collections.abc import Callable
from itertools import combinations
from statistics import fmean

import pytest

from kifu.errors import UsageError
from kifu.evaluation import BestOf, best_of_k, choose, pass_at_k
from kifu.records import StopReason, Trajectory

Make = Callable[..., Trajectory]
SCORES = [0.3, 0.9, -0.5, 0.9, 0.0]
WON = [True, False, True, True, False]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_choice_among_k_is_its_mean_over_every_subset(k: int) -> None:
    drawn = []
    for subset in combinations(range(5), k):
        best = subset[0]
        for at in subset[1:]:
            if SCORES[at] > SCORES[best]:
                best = at
        drawn.append(WON[best])

    assert best_of_k(SCORES, WON, k=k) == pytest.approx(fmean(drawn), abs=1e-15)


def test_a_judge_that_is_never_wrong_reaches_pass_at_k() -> None:
    scores = [float(won) for won in WON]
    found = [best_of_k(scores, WON, k=k) for k in range(1, 6)]
    assert found == pytest.approx([pass_at_k(3, 5, k=k) for k in range(1, 6)])


def test_a_judge_that_is_always_wrong_is_worse_than_one_attempt() -> None:
    assert best_of_k([-float(won) for won in WON], WON, k=2) == pytest.approx(3 / 10)  # 3 of 10 pairs hold no failure


def test_of_equal_scores_the_first_is_chosen() -> None:
    assert (choose([0.1, 0.7, 0.7]), choose([0.0, 0.0])) == (1, 0)


@pytest.mark.parametrize(("scores", "told"), [([], "no attempt"), ([0.0, float("nan")], "finite")])
def test_what_cannot_be_chosen_is_refused(scores: list[float], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose(scores)


@pytest.mark.parametrize("k", [0, 6])
def test_more_attempts_than_there_are_cannot_be_chosen_from(k: int) -> None:
    with pytest.raises(UsageError, match=r"1\.\.5"):
        best_of_k(SCORES, WON, k=k)


def test_the_chosen_stands_beside_one_attempt_and_any_of_them(make: Make) -> None:
    """Three tasks of two attempts: a right choice, a wrong one, nothing to win."""
    made = {
        (task, member): make(task=task, member=member, success=won)
        for task, member, won in (
            ("a", 0, False),
            ("a", 1, True),
            ("b", 0, True),
            ("b", 1, False),
            ("c", 0, False),
            ("c", 1, False),
        )
    }
    liked = {("a", 1): 2.0, ("b", 1): 1.0, ("c", 0): 3.0}
    scores = {item.id: liked.get(place, 0.0) for place, item in made.items()}

    found = BestOf.of(made.values(), scores, n=2, judge="hand")

    rates = [one.mean for one in (found.chosen, found.one, found.any, found.gain) if one is not None]
    assert rates == pytest.approx([1 / 3, 2 / 6, 2 / 3, 0.0])
    assert dict(found.by_k) == pytest.approx({1: 2 / 6, 2: 1 / 3})
    assert found.choices == {"a": made["a", 1].id, "b": made["b", 1].id, "c": made["c", 0].id}
    assert (found.tasks, found.left_out) == (3, 0)
    assert found.to_json()["pass@2"]["mean"] == pytest.approx(2 / 3)


def test_a_task_short_of_candidates_is_in_no_rate(make: Make) -> None:
    whole = [make(task="a", member=member, success=True) for member in range(2)]
    unknown = [make(task="b", member=0, success=None), make(task="b", member=1, success=True)]
    failed = [
        make(task="c", member=0, success=None, reason=StopReason.ENV_ERROR),
        make(task="c", member=1, success=False),
    ]
    unscored = [make(task="d", member=member, success=False) for member in range(2)]
    everything = [*whole, *unknown, *failed, *unscored]
    scores = {item.id: 0.5 for item in everything if item is not unscored[0]}

    found = BestOf.of(everything, scores, n=2, judge="hand")

    assert (found.tasks, found.left_out) == (1, 3)
    assert found.one is not None
    assert found.one.mean == 1.0
    assert found.choices == {"a": whole[0].id, "b": unknown[0].id, "c": failed[1].id, "d": unscored[1].id}


def test_where_no_task_counts_nothing_is_said(make: Make) -> None:
    found = BestOf.of([make(task="a", member=0, success=True)], {}, n=2, judge="hand")
    assert (found.chosen, found.one, found.any, found.gain, found.by_k) == (None, None, None, None, {})
    assert found.to_json()["chosen"] == {"mean": None, "low": None, "high": None}
