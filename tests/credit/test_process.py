"""What learned feedback pays, in loops and by its sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kifu.credit import Label, hindsight_rewards, process_rewards
from kifu.errors import ArgumentError

SCORES = st.lists(st.floats(0.0, 1.0), max_size=12)


@settings(deadline=None)
@given(scores=SCORES, weight=st.floats(-3.0, 3.0), baseline=st.floats(0.0, 1.0))
def test_differences_add_up_to_the_last_score_whatever_happened_on_the_way(
    scores: list[float], weight: float, baseline: float
) -> None:
    paid = process_rewards(scores, weight=weight, baseline=baseline, pays="difference")
    expected = weight * (scores[-1] - baseline) if scores else 0.0
    assert float(paid.sum()) == pytest.approx(expected, abs=1e-12)


def test_each_turn_is_paid_its_own_rise_or_its_own_score() -> None:
    paid = process_rewards([0.5, 0.25, 1.0], weight=2.0, baseline=0.25, pays="difference")
    assert paid.tolist() == [0.5, -0.5, 1.5]
    assert process_rewards([0.5, 0.25, 1.0], weight=2.0, baseline=0.25, pays="score").tolist() == [1.0, 0.5, 2.0]


def test_going_in_circles_is_paid_by_scores_and_not_by_differences() -> None:
    """The same good turn again and again: scores pay it each time."""
    paid = {pays: [process_rewards([0.9] * turns, weight=1.0, baseline=0.5, pays=pays).sum() for turns in (1, 5)]
            for pays in ("score", "difference")}  # fmt: skip
    assert paid["score"] == pytest.approx([0.9, 4.5])
    assert paid["difference"] == pytest.approx([0.4, 0.4])


def test_an_attempt_without_a_turn_is_paid_nothing_and_a_score_that_is_no_share_is_refused() -> None:
    assert process_rewards([], weight=1.0, baseline=0.5, pays="difference").size == 0
    with pytest.raises(ArgumentError, match=r"must lie in \[0, 1\], found -0.5 to 2.0"):
        process_rewards([2.0, -0.5], weight=1.0, baseline=0.5, pays="score")


def test_labels_in_hindsight_are_paid_by_their_sign() -> None:
    found = hindsight_rewards([Label.GOOD, Label.NEUTRAL, Label.BAD], weight=0.5)
    assert found.tolist() == [0.5, 0.0, -0.5]
    assert hindsight_rewards([], weight=1.0).dtype == np.float64
