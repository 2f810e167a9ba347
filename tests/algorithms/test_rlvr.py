"""RLVR: the reward written out by hand, the two updates it may take, and where it leaves GRPO and PPO."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import ALGORITHMS, Feedback, build_algorithm, differing_axes
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.errors import UsageError
from kifu.objectives import PolicyObjective
from kifu.training.inspection.explain import explain_file

Known = Callable[..., Episode]
Train = Callable[..., Any]


@pytest.fixture
def graded(make_known: Known) -> list[Episode]:
    """Four attempts: the verifier's grade is not the same as its success, and a check pays on the way."""
    return [
        make_known([0.0, 0.9], tokens=[2, 1], outcome=0.9, success=False, id="close"),
        make_known([0.25, 1.0], tokens=[1, 1], outcome=1.0, success=True, id="right"),
        make_known([0.6], tokens=[3], outcome=0.6, success=True, id="barely"),
        make_known([0.0], tokens=[1], outcome=0.0, success=False, id="wrong"),
    ]


@pytest.mark.parametrize("verified", [1.0, 10.0])
def test_an_attempt_is_paid_for_success_and_never_for_its_grade(graded: list[Episode], verified: float) -> None:
    found = build_algorithm("rlvr", {"verified": verified, "eps": 0.0}).credit(graded, RewardRules()) or []

    returns = [0.0, 0.25 + verified, verified, 0.0]
    wanted = [(one - fmean(returns)) / stdev(returns) for one in returns]
    assert [one.advantages_K[0] for one in found] == pytest.approx(wanted)
    assert [set(one.advantages_K.tolist()) == {one.advantages_K[0]} for one in found] == [True] * 4


def test_grpo_is_paid_by_the_grade(graded: list[Episode]) -> None:
    graded_pay = [0.9, 1.25, 0.6, 0.0]
    wanted = [one - fmean(graded_pay) for one in graded_pay]

    [grpo, mine] = [
        [
            float(one.advantages_K[0])
            for one in build_algorithm(name, {"std": "none"}).credit(graded, RewardRules()) or []
        ]
        for name in ("grpo", "rlvr")
    ]

    assert grpo == pytest.approx(wanted)
    assert (grpo[0] > 0, mine[0] < 0) == (True, True)


def test_with_a_critic_residuals_are_added_up_by_hand(make_known: Known) -> None:
    """Gamma .9, lam .5; the penalty is k1 inside the reward of every turn."""
    one = make_known(
        [0.0, 0.4],
        tokens=[1, 2],
        values=[0.3, -0.2],
        outcome=0.4,
        success=True,
        logprobs_N=[np.array(part) for part in ([-1.0], [-0.5, -0.5])],
        reference_logprobs_N=[np.array(part) for part in ([-1.5], [-0.25, -1.0])],
    )
    method = build_algorithm("rlvr", {"baseline": "critic", "verified": 2.0, "beta": 0.2, "lam": 0.5})

    [found] = method.credit([one], RewardRules(gamma=0.9)) or []

    rewards = [-0.2 * (-1.0 + 1.5), 2.0 - 0.2 * ((-0.5 + 0.25) + (-0.5 + 1.0))]
    last = rewards[1] - (-0.2)
    first = rewards[0] + 0.9 * (-0.2) - 0.3 + 0.9 * 0.5 * last
    assert found.advantages_K.tolist() == pytest.approx([first, last])
    assert found.value_targets_K is not None
    assert found.value_targets_K.tolist() == pytest.approx([first + 0.3, last - 0.2])


@pytest.mark.parametrize("baseline", ["group", "critic"])
def test_what_the_verifier_could_not_tell_is_in_no_statistic(make_known: Known, baseline: str) -> None:
    """The others are credited as if it were not there, and none of its turns is kept."""
    sure = [make_known([float(won)], values=[0.5], outcome=float(won), success=won) for won in (True, False, False)]
    unsure = make_known([0.8], values=[0.5], outcome=0.8, success=None)
    method = build_algorithm("rlvr", {"baseline": baseline})

    alone = method.credit(sure, RewardRules()) or []
    beside = method.credit([sure[0], unsure, *sure[1:]], RewardRules()) or []

    told = [beside[at] for at in (0, 2, 3)]
    assert [one.advantages_K.tolist() for one in told] == [one.advantages_K.tolist() for one in alone]
    assert [one.keeps(0) for one in beside] == [True, False, True, True]
    assert method.credit([unsure], RewardRules()) is None


def test_the_critic_learns_from_the_others_as_if_what_cannot_be_told_were_not_there(make_known: Known) -> None:
    """Its target stands in the update, since an update has targets for all or for none, and weighs nothing."""
    sure = [make_known([float(won)], values=[0.5], outcome=float(won), success=won) for won in (True, False)]
    unsure = make_known([0.8], values=[0.5], outcome=0.8, success=None)

    found = build_algorithm("rlvr", {"baseline": "critic"}).credit([*sure, unsure], RewardRules()) or []

    assert [one.value_targets_K is None for one in found] == [False, False, False]
    assert [one.keeps(0) for one in found] == [True, True, False]


def test_nothing_can_be_paid_for_nothing() -> None:
    with pytest.raises(UsageError, match="verified"):
        build_algorithm("rlvr", {"verified": 0.0})


def test_a_file_that_does_not_tell_success_is_refused(tmp_path: Path) -> None:
    turns = [{"tokens": [{"logprob": -0.1, "behaviour_logprob": -0.1}]}]
    attempts = [{"id": name, "reward": reward, "turns": turns} for name, reward in (("T1", 1.0), ("T2", 0.0))]
    file = tmp_path / "attempts.json"
    file.write_text(json.dumps({"groups": [{"trajectories": attempts}]}))
    with pytest.raises(UsageError, match=r"trajectory T1, `success`: missing"):
        explain_file(file, algorithm="rlvr")

    told = [{**attempt, "success": attempt["reward"] == 1.0} for attempt in attempts]
    file.write_text(json.dumps({"groups": [{"trajectories": [*told, {**attempts[0], "id": "T3", "success": None}]}]}))
    found = explain_file(file, algorithm="rlvr")
    shown = [item["turns"][0]["advantage"] for item in found["groups"][0]["trajectories"]]
    half = 2**-0.5  # two attempts, sample deviation
    assert shown == [pytest.approx(half, abs=1e-5), pytest.approx(-half, abs=1e-5), 0.0]


def test_a_group_with_one_outcome_is_left_out_however_it_was_graded(make_known: Known) -> None:
    alike = [make_known([grade], outcome=grade, success=False) for grade in (0.1, 0.9)]

    assert build_algorithm("rlvr").credit(alike, RewardRules()) is None
    assert build_algorithm("grpo").credit(alike, RewardRules()) is not None


def test_a_bootstrapped_cut_is_worth_what_the_critic_says(make_known: Known) -> None:
    cut = make_known([0.0], values=[0.1], cut_worth=0.7)
    [found] = build_algorithm("rlvr", {"baseline": "critic"}).credit([cut], RewardRules(gamma=0.9)) or []

    assert found.advantages_K.tolist() == pytest.approx([0.9 * 0.7 - 0.1])
    assert found.keeps(0)


def test_an_update_in_plain_loops_with_clips_counted(graded: list[Episode], train_on: Train) -> None:
    ratios = [0.5, 1.5, 1.1, 0.9, 1.3, 0.7]
    returns, tokens = [0.0, 1.25, 1.0, 0.0], [3, 2, 3, 1]
    advantages = [(one - fmean(returns)) / (stdev(returns) + 1e-6) for one in returns]
    by_token = [a for a, count in zip(advantages, tokens, strict=True) for _ in range(count)]
    loss, clipped = 0.0, 0
    for at, one in enumerate(by_token):
        bounded = min(max(ratios[at % 6], 0.8), 1.2)
        loss -= min(ratios[at % 6] * one, bounded * one) / len(by_token)
        clipped += bounded * one < ratios[at % 6] * one

    found = train_on(build_algorithm("rlvr"), graded, ratio=lambda token: ratios[token % 6])

    assert found.loss == pytest.approx(loss, abs=1e-9)
    assert found.stats["clipped_tokens"] == clipped > 0


def test_with_a_critic_advantages_are_whitened_over_the_update(make_known: Known, train_on: Train) -> None:
    group = [make_known([0.3], tokens=[2], values=[0.2], outcome=0.3, success=won) for won in (True, False)]
    paid = [1.0 - 0.2, 1.0 - 0.2, -0.2, -0.2]

    found = train_on(build_algorithm("rlvr", {"baseline": "critic"}), group)

    wanted = [(one - fmean(paid)) / (pstdev(paid) + 1e-8) for one in paid]
    assert [one for part in found.advantages for one in part] == pytest.approx(wanted)


def test_the_two_updates_ask_for_what_they_need_and_no_more() -> None:
    group, critic = build_algorithm("rlvr", {"beta": 0.04}), build_algorithm("rlvr", {"baseline": "critic"})

    assert (group.plan.needs_group, group.plan.needs_value, group.plan.needs_reference) == (True, False, True)
    assert (critic.plan.needs_group, critic.plan.needs_value, critic.plan.needs_reference) == (False, True, False)
    losses = [one.objective() for one in (group, critic, build_algorithm("rlvr"))]
    assert all(isinstance(one, PolicyObjective) for one in losses)
    assert [getattr(one, "kl", None) is None for one in losses] == [False, True, True]
    assert [getattr(one, "value", None) is None for one in losses] == [True, False, True]


def test_its_card_names_a_check_as_feedback_and_an_axis_on_which_grpo_differs() -> None:
    assert ALGORITHMS["rlvr"].card.feedback == (Feedback.RULE,)
    axes = differing_axes(build_algorithm("rlvr", {"average": "trajectory"}), build_algorithm("grpo"))
    assert axes["verifiable"] == ("yes", "no")
    assert axes["feedback"] == ("rule check", "environment outcome")


def test_a_single_attempt_replaced_by_its_failure_turns_the_sign(graded: list[Episode]) -> None:
    before = build_algorithm("rlvr").credit(graded, RewardRules()) or []
    flipped = [replace(one, success=not one.success) for one in graded]
    after = build_algorithm("rlvr").credit(flipped, RewardRules()) or []

    assert [np.sign(one.advantages_K[0]) for one in after] == [-np.sign(one.advantages_K[0]) for one in before]
