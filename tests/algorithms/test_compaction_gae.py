"""Cross-segment GAE against loops: each context by itself, shrunk by the tokens after it."""

from collections.abc import Callable

import numpy as np
import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Make = Callable[..., Episode]


def gae(rewards: list[float], values: list[float], *, gamma: float, lam: float, after: float = 0.0) -> list[float]:
    following = [*values[1:], after]
    delta = [r + gamma * w - v for r, v, w in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(delta))) for i in range(len(delta))]


def test_every_context_ends_with_the_final_reward_and_is_shrunk(make_known: Make) -> None:
    values = [np.array([0.1, 0.2]), np.array([0.3]), np.array([0.4, 0.5, 0.6])]
    episode = make_known([0, 0, 1], tokens=[2, 1, 3], values_N=values, segment=[0, 0, 1])
    found = build_algorithm("compaction_gae").credit([episode], RewardRules())
    lam = 1 - 1 / (1.5 * 6)
    first = gae([0, 0, 1], [0.1, 0.2, 0.3], gamma=1.0, lam=lam)
    last = gae([0, 0, 1], [0.4, 0.5, 0.6], gamma=1.0, lam=lam)
    assert found is not None
    tokens = np.concatenate(found[0].token_advantages_K or ())
    assert tokens.tolist() == pytest.approx([lam**3 * a for a in first] + last, abs=1e-12)
    assert [part.size for part in found[0].token_advantages_K or ()] == [2, 1, 3]


def test_contexts_may_interleave_and_a_cut_hands_on_its_value(make_known: Make) -> None:
    values = [np.array([0.1]), np.array([0.2]), np.array([0.3]), np.array([0.0])]
    episode = make_known([0, 2, 0, -1], tokens=[1] * 4, values_N=values, segment=[7, 3, 7, 3], cut_worth=0.5)
    found = build_algorithm("compaction_gae", {"gamma": 0.9, "scale": 1.0}).credit([episode], RewardRules())
    lam = 1 - 1 / 4
    early = gae([0 + 2.0, 0 - 1.0], [0.1, 0.3], gamma=0.9, lam=lam)  # each as it is paid, after the token before it
    late = gae([2, -1], [0.2, 0.0], gamma=0.9, lam=lam, after=0.5)
    shrink = (0.9 * lam) ** 2
    assert found is not None
    assert np.concatenate(found[0].token_advantages_K or ()).tolist() == pytest.approx(
        [shrink * early[0], late[0], shrink * early[1], late[1]], abs=1e-12
    )


def test_a_context_inside_another_sees_what_is_paid_after_it(make_known: Make) -> None:
    """By hand: lam 1 - 1/4.5 over three tokens, no values, 1 paid in the last turn; the inner context ends first."""
    values = [np.zeros(1)] * 3
    episode = make_known([0, 0, 1], tokens=[1, 1, 1], values_N=values, segment=[0, 1, 0])
    found = build_algorithm("compaction_gae").credit([episode], RewardRules())
    lam = 1 - 1 / 4.5
    assert found is not None
    assert np.concatenate(found[0].token_advantages_K or ()).tolist() == pytest.approx([lam, lam**2, 1.0], abs=1e-12)


def test_one_context_is_plain_token_gae(make_known: Make) -> None:
    values = [np.array([0.2, 0.4]), np.array([0.6])]
    found = build_algorithm("compaction_gae").credit(
        [make_known([0, 1], tokens=[2, 1], values_N=values)], RewardRules()
    )
    assert found is not None
    expected = gae([0, 0, 1], [0.2, 0.4, 0.6], gamma=1.0, lam=1 - 1 / 4.5)
    assert np.concatenate(found[0].token_advantages_K or ()).tolist() == pytest.approx(expected, abs=1e-12)
    assert found[0].value_targets_K is not None
    assert found[0].value_targets_K.tolist() == pytest.approx([expected[0] + 0.2, expected[2] + 0.6])


def test_a_compaction_makes_it_differ_from_both_neighbours(make_known: Make) -> None:
    values = [np.array([0.1, 0.2]), np.array([0.3, 0.4])]
    parted = make_known([0, 1], tokens=[2, 2], values_N=values, segment=[0, 1])
    whole = make_known([0, 1], tokens=[2, 2], values_N=values)
    found = [
        np.concatenate(credits[0].token_advantages_K or ())
        for credits in (
            build_algorithm("compaction_gae").credit([parted], RewardRules()),
            build_algorithm("compaction_gae").credit([whole], RewardRules()),
            build_algorithm("bilevel_gae").credit([parted], RewardRules()),
        )
        if credits is not None
    ]
    assert len(found) == 3
    assert abs(found[0] - found[1]).max() > 0.05
    assert abs(found[0] - found[2]).max() > 0.05


def test_turns_without_tokens_and_members_without_turns_are_nothing(make_known: Make) -> None:
    empty = make_known([], values_N=[], segment=[])
    silent = make_known([-1.0], tokens=[0], values_N=[np.empty(0)], segment=[0])
    found = build_algorithm("compaction_gae").credit([empty, silent], RewardRules())
    assert found is not None
    assert found[0].token_advantages_K == ()
    assert [part.size for part in found[1].token_advantages_K or ()] == [0]
    assert not found[1].keeps(0)


def test_a_missing_value_is_named(make_known: Make) -> None:
    with pytest.raises(ArgumentError, match="T2, turn 0: the method needs `value` of every token"):
        build_algorithm("compaction_gae").credit([make_known([1.0], id="T2")], RewardRules())
