"""Gradient weight by label, against sums written out."""

import pytest

from kifu.dashboard.reading import RunView
from kifu.dashboard.weight import by_calls, by_length, by_turns, pull_by


def test_shares_are_those_of_the_weights_times_advantages(run: RunView) -> None:
    # 2 tokens of |1/6 * 1| against 4 tokens of |1/6 * -2|
    short, long = 2 * (1 / 6), 4 * (1 / 6) * 2
    found = pull_by(run.plan, run.trajectories, by_turns)
    assert [(item.label, item.trajectories) for item in found] == [("2", 1), ("4", 1)]
    assert [item.share for item in found] == pytest.approx([short / (short + long), long / (short + long)])
    assert [item.each for item in found] == pytest.approx([2 * item.share for item in found])


@pytest.mark.parametrize(("label", "expected"), [(by_length, ["2-3", "4-7"]), (by_calls, ["2", "4"])])
def test_labels_are_lengths_in_powers_of_two_and_executed_calls(
    run: RunView, label: object, expected: list[str]
) -> None:
    assert callable(label)
    assert [item.label for item in pull_by(run.plan, run.trajectories, label)] == expected


def test_a_run_without_gradient_has_no_shares(run: RunView) -> None:
    assert pull_by([], run.trajectories, by_turns) == []
