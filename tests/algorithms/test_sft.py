"""Imitation looks at no reward."""

from collections.abc import Callable

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules


def test_every_turn_is_imitated_whatever_it_earned(make_episode: Callable[..., Episode]) -> None:
    group = [make_episode([0.0, -5.0]), make_episode([7.0])]

    found = build_algorithm("sft").credit(group, RewardRules())

    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [[1.0, 1.0], [1.0]]
    assert build_algorithm("sft").plan.demonstrations
