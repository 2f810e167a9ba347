"""Advantage-weighted regression: baselines, weights of whole updates in loops, and where it leaves imitation."""

from collections.abc import Callable
from dataclasses import replace
from math import exp
from statistics import fmean, pstdev
from typing import Any

import pytest

from kifu.algorithms import build_algorithm
from kifu.credit import Episode, StoredTrajectories
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError

Known = Callable[..., Episode]


def test_weights_are_capped_exponentials_of_normalized_advantages(
    make_known: Known, train_on: Callable[..., Any]
) -> None:
    """In loops: A against the mean of each task, normalized over all tokens, then min(exp(A / b), cap) / tokens."""
    groups = [
        [make_known([0.0, 1.0], tokens=[2, 1]), make_known([-1.0], tokens=[2])],
        [make_known([3.0], tokens=[1]), make_known([0.0, 0.0, 0.0], tokens=[1, 0, 1])],
    ]
    raw = [1.0 - 0.0] * 3 + [-1.0] * 2 + [3.0 - 1.5] + [-1.5] * 2
    mean, std = fmean(raw), pstdev(raw) + 1e-5
    weights = [min(exp((value - mean) / std / 0.3), 20.0) for value in raw]

    found = train_on(build_algorithm("offline_awr", {"temperature": 0.3}), *groups)

    gradient = [value for part in found.gradient for value in part]
    assert gradient == pytest.approx([-weight / len(raw) for weight in weights], rel=1e-9)
    assert found.stats["capped_tokens"] == sum(weight == 20.0 for weight in weights) > 0


def test_equal_returns_make_it_imitation(make_known: Known, train_on: Callable[..., Any]) -> None:
    group = [make_known([0.0, 1.0], tokens=[2, 2]), make_known([1.0], tokens=[3])]

    mine = train_on(build_algorithm("offline_awr", {"normalize": False}), group).gradient
    other = train_on(build_algorithm("sft"), group).gradient

    assert mine == other == [[-1 / 7] * 4, [-1 / 7] * 3]
    assert train_on(build_algorithm("offline_awr"), group).gradient == [], "normalized, there is nothing to compare"


def test_it_differs_from_imitation_where_returns_differ(make_known: Known, train_on: Callable[..., Any]) -> None:
    group = [make_known([1.0], tokens=[1]), make_known([0.0], tokens=[1])]

    mine, other = (train_on(build_algorithm(name), group).gradient for name in ("offline_awr", "sft"))

    assert [part[0] / other[0][0] for part in mine] == pytest.approx([exp(1.0), exp(-1.0)], rel=1e-4)


def test_baselines_are_the_task_the_state_or_the_recorded_critic(make_known: Known) -> None:
    group = [
        make_known([0.0, 1.0], state=["s", "a"], values=[0.5, 0.25]),
        make_known([0.0, 0.0], state=["s", "b"], values=[0.5, 0.0]),
    ]

    def advantages(**options: Any) -> list[list[float]]:  # noqa: ANN401 (options of the method)
        found = build_algorithm("offline_awr", options).credit(group, RewardRules())
        assert found is not None
        return [credit.advantages_K.tolist() for credit in found]

    assert advantages() == [[0.5, 0.5], [-0.5, -0.5]]
    assert advantages(baseline="state") == [[0.5, 0.0], [-0.5, 0.0]]
    assert advantages(baseline="critic", lam=0.0) == [[-0.25, 0.75], [-0.5, 0.0]]
    assert advantages(baseline="critic", lam=1.0) == [[0.5, 0.75], [-0.5, 0.0]]


def expected_update(
    ragged: list[list[Any]], baseline: str, *, gamma: float, lam: float, states: list[list[list[str]]]
) -> list[float]:
    """Slopes of all tokens: - min(exp(A / b), cap) / tokens, A unnormalized, in the notation of the card."""
    slopes = []
    for group, keys in zip(ragged, states, strict=True):
        returns = [
            [sum(gamma ** (j - k) * r for j, r in enumerate(one.rewards) if j >= k) for k in range(len(one.rewards))]
            for one in group
        ]
        for at, one in enumerate(group):
            for k, count in enumerate(one.tokens):
                if baseline == "task":
                    advantage = returns[at][k] - fmean(values[0] for values in returns)
                elif baseline == "state":
                    same = [
                        v
                        for vs, ss in zip(returns, keys, strict=True)
                        for v, s in zip(vs, ss, strict=True)
                        if s == keys[at][k]
                    ]
                    advantage = returns[at][k] - fmean(same)
                else:
                    after = [*one.values[1:], 0.0]
                    delta = [r + gamma * v - now for r, v, now in zip(one.rewards, after, one.values, strict=True)]
                    advantage = sum((gamma * lam) ** (j - k) * d for j, d in enumerate(delta) if j >= k)
                slopes += [-min(exp(advantage / 0.5), 3.0)] * count
    return [slope / len(slopes) for slope in slopes]


@pytest.mark.parametrize("baseline", ["task", "state", "critic"])
def test_ragged_records_in_plain_loops_whatever_the_baseline(
    told_groups: list[list[Episode]], ragged: list[list[Any]], train_on: Callable[..., Any], baseline: str
) -> None:
    """A record alone at its task, turns without tokens, equal rewards, rewards below 0; capped weights are counted."""
    states = [[[f"s{k % 2}" for k in range(len(one.rewards))] for one in group] for group in ragged]
    groups = [
        [
            replace(one, turns=tuple(replace(turn, state=key) for turn, key in zip(one.turns, keys, strict=True)))
            for one, keys in zip(group, known, strict=True)
        ]
        for group, known in zip(told_groups, states, strict=True)
    ]
    options = {"baseline": baseline, "normalize": False, "temperature": 0.5, "cap": 3.0, "lam": 0.8}

    found = train_on(build_algorithm("offline_awr", options), *groups, rules=RewardRules(gamma=0.9))

    expected = expected_update(ragged, baseline, gamma=0.9, lam=0.8, states=states)
    assert [slope for part in found.gradient for slope in part] == pytest.approx(expected, abs=1e-12)
    capped = sum(slope == pytest.approx(-3.0 / 16) for slope in expected)
    assert found.stats["capped_tokens"] == capped
    assert capped > 0 or baseline != "task"


def test_a_record_without_a_value_or_a_state_is_named(make_known: Known) -> None:
    for baseline, field in (("critic", "value"), ("state", "`state`")):
        with pytest.raises(ArgumentError, match=f"trajectory T7.*{field}"):
            build_algorithm("offline_awr", {"baseline": baseline}).credit([make_known([1.0], id="T7")], RewardRules())


def test_it_learns_from_records_alone() -> None:
    plan = build_algorithm("offline_awr").plan
    assert plan.data == StoredTrajectories()
    assert not plan.needs_value
