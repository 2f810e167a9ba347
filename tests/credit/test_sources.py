"""The gate of success replay, against the printed figures and hand-made groups."""

import pytest

from kifu.credit import SuccessReplay, wants_replay
from kifu.errors import ArgumentError

Rewards = list[float | None]


@pytest.mark.parametrize(
    ("rewards", "wants"),
    [
        ([0, 0, 0, 0], True),
        ([0, -0.5, 0, 0], False),
        ([1, 0, 0, 0], False),
        ([1, 1, 1, 1], False),
        ([0.19, 0.19], True),
        ([0.2, 0.2], False),
        ([-3, -3, -3], True),
        ([0, 0.07], True),
        ([0, 0.08], False),
        ([0, None, 0], True),
        ([0, None], False),
        ([0], False),
        ([], False),
    ],
)
def test_a_group_that_fails_alike_wants_a_success(rewards: Rewards, wants: bool) -> None:
    """Deviations of [0, .07] and [0, .08] with n - 1 are .0495 and .0566; with n they would be .035 and .04."""
    assert wants_replay(rewards, SuccessReplay()) is wants


def test_the_gate_can_be_set() -> None:
    assert wants_replay([0, -0.5, 0, 0], SuccessReplay(max_std=0.3))
    assert not wants_replay([0, 0, 0, 0], SuccessReplay(max_mean=0.0))


def test_a_buffer_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1 per task, found 0"):
        SuccessReplay(capacity=0)
