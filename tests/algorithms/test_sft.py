"""Imitation looks at no reward."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules


def test_every_turn_is_imitated_whatever_it_earned(make_episode: Callable[..., Episode]) -> None:
    group = [make_episode([0.0, -5.0]), make_episode([7.0])]

    found = build_algorithm("sft").credit(group, RewardRules())

    assert found is not None
    assert [credit.advantages_K.tolist() for credit in found] == [[1.0, 1.0], [1.0]]
    assert build_algorithm("sft").plan.demonstrations


def test_every_token_shown_weighs_the_same_where_reinforce_weighs_what_was_earned(
    make_known: Callable[..., Episode], train_on: Callable[..., Any]
) -> None:
    """Ragged traces, one alone in its group, a turn without tokens, equal and negative rewards: - mean log pi."""
    group = [
        make_known([0.0, -5.0], tokens=[2, 1], id="T1"),
        make_known([0.0, 0.0, -5.0], tokens=[1, 0, 3], id="T2"),
        make_known([-5.0], tokens=[4], id="T3"),
    ]

    shown, earned = (train_on(build_algorithm(name), group[:2], group[2:]) for name in ("sft", "reinforce"))

    assert [len(part) for part in shown.gradient] == [3, 4, 4]
    assert [slope for part in shown.gradient for slope in part] == pytest.approx([-1 / 11] * 11)
    assert shown.loss == pytest.approx(1.0)  # every log-probability is -1 here
    assert [slope for part in earned.gradient for slope in part] == pytest.approx([5 / 3] * 11)
