"""Which groups of a step are trained: printed examples and plain rules."""

from collections import Counter
from statistics import mean, stdev

import pytest

from kifu.credit.group import Rewards
from kifu.credit.selection import (
    DuplicateInformative,
    KeepInformative,
    SuccessBand,
    TopSpread,
    copies_of_groups,
)
from kifu.errors import ArgumentError

GROUPS: list[list[float]] = [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]


def informative(groups: list[list[float]]) -> list[Rewards | None]:
    """The groups as a selection sees them: None where all rewards are equal."""
    return [None if len(set(group)) < 2 else group for group in groups]


def test_every_informative_group_is_kept_once() -> None:
    assert copies_of_groups(KeepInformative(), rewards=informative(GROUPS), seed=0) == (0, 1, 1, 0)


def test_the_quarter_that_spreads_most_is_the_printed_one() -> None:
    """StarPO-S: sample deviations 0, .5, .57735, 0; a quarter of four groups is the third."""
    assert [stdev(group) for group in GROUPS] == pytest.approx([0, 0.5, 0.57735, 0], abs=5e-6)
    assert copies_of_groups(TopSpread(share=0.25), rewards=informative(GROUPS), seed=0) == (0, 0, 1, 0)


@pytest.mark.parametrize(("share", "kept"), [(0.25, 2), (0.5, 4), (0.75, 5), (1.0, 5), (0.01, 1)])
def test_the_share_is_of_all_groups_and_at_least_one_is_kept(share: float, kept: int) -> None:
    """Eight groups of which five compare something; ties go to the earlier group."""
    groups: list[list[float]] = [[0, 0], [1, 0], [4, 0], [1, 1], [2, 0], [1, 0], [2, 2], [3, 0]]
    order = [2, 7, 4, 1, 5]
    found = copies_of_groups(TopSpread(share=share), rewards=informative(groups), seed=0)
    assert [at for at, times in enumerate(found) if times] == sorted(order[:kept])


def test_free_slots_go_to_copies_of_informative_groups() -> None:
    """DUPO: groups A to D with two of no signal; B and D stay and two copies are drawn among them."""
    seen = Counter(
        copies_of_groups(DuplicateInformative(), rewards=informative(GROUPS), seed=seed) for seed in range(60)
    )
    assert set(seen) == {(0, 3, 1, 0), (0, 2, 2, 0), (0, 1, 3, 0)}
    assert copies_of_groups(DuplicateInformative(), rewards=informative(GROUPS), seed=5) == copies_of_groups(
        DuplicateInformative(), rewards=informative(GROUPS), seed=5
    )


def test_without_an_informative_group_there_is_nothing_to_copy() -> None:
    nothing: list[Rewards | None] = [None, None]
    for selection in (DuplicateInformative(), TopSpread(), SuccessBand(), KeepInformative()):
        assert copies_of_groups(selection, rewards=nothing, seed=0) == (0, 0)
        assert copies_of_groups(selection, rewards=[], seed=0) == ()


def test_a_band_keeps_groups_by_their_mean_reward() -> None:
    groups: list[list[float]] = [[1.0] + [0.0] * 15, [1, 0], [1, 1, 1, 0], [1.0] * 15 + [0.0]]
    found = copies_of_groups(SuccessBand(low=0.1, high=0.9), rewards=informative(groups), seed=0)
    assert found == tuple(int(0.1 <= mean(group) <= 0.9) for group in groups) == (0, 1, 1, 0)


def test_members_without_a_reward_are_in_no_statistic() -> None:
    rewards: list[Rewards | None] = [[1.0, None, 0.0], [1.0, 0.0, 0.0]]
    assert copies_of_groups(TopSpread(share=0.5), rewards=rewards, seed=0) == (1, 0)
    assert copies_of_groups(SuccessBand(low=0.4, high=0.6), rewards=rewards, seed=0) == (1, 0)
    few: list[Rewards | None] = [[1.0, None], [None, None], [0.5, 0.25]]
    assert copies_of_groups(TopSpread(share=0.4), rewards=few, seed=0) == (0, 0, 1)
    assert copies_of_groups(SuccessBand(low=0.0, high=1.0), rewards=few, seed=0) == (1, 0, 1)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match=str(share)):
        TopSpread(share=share)
