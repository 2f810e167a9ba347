"""Success replay: the printed advantages, and where it leaves GRPO."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from kifu.algorithms import build_algorithm
from kifu.credit import Episode, FreshRollouts, SuccessReplay
from kifu.credit.reading import RewardRules
from kifu.objectives import Terms
from kifu.records import RolloutKey
from kifu.testing.trial_records import record_of, records_of
from kifu.testing.trials import Shape, Tabular, make_groups
from kifu.training.update.assemble import Assembled, assemble
from kifu.training.update.borrowed import Borrowed
from kifu.training.update.success_buffer import SuccessBuffer

Make = Callable[..., Episode]


def advantages(make_episode: Make, rewards: list[float], method: str = "agentic_replay_po") -> list[float] | None:
    found = build_algorithm(method).credit([make_episode([0.0, value]) for value in rewards], RewardRules())
    return None if found is None else [float(credit.advantages_K[0]) for credit in found]


def test_a_replayed_success_gives_a_failed_group_the_printed_advantages(make_episode: Make) -> None:
    found = advantages(make_episode, [1.0, 0.0, 0.0, 0.0])

    assert found == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=5e-7)


def test_without_replay_the_group_carries_no_signal(make_episode: Make) -> None:
    assert advantages(make_episode, [0.0] * 4) is None


def test_a_malformed_action_in_a_failed_group_is_credited_as_printed(make_episode: Make) -> None:
    """Returns [1, -.5, -.5, -.5] have deviation .75: (1 - (-.125)) / .75 = 1.5."""
    assert advantages(make_episode, [1.0, -0.5, -0.5, -0.5]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_what_tells_it_from_grpo_is_the_source_of_data(make_episode: Make) -> None:
    rewards = [1.0, 0.0, 0.5]

    assert advantages(make_episode, rewards) == advantages(make_episode, rewards, "grpo")
    assert build_algorithm("grpo").plan.data == FreshRollouts()
    assert build_algorithm("agentic_replay_po").plan.data == SuccessReplay(ratio="one")
    assert build_algorithm("agentic_replay_po", {"correction": "ratio"}).plan.data == SuccessReplay(ratio="recorded")


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.29, 1.0, -1.29), (1.5, 1.0, -1.3), (0.7, -1.0, 0.8), (2.9, -1.0, 2.9), (5.0, -1.0, 3.0)],
)
def test_the_clip_is_low_high_and_dual(ratio: float, advantage: float, loss: float) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    terms = Terms(
        logp_N=torch.tensor([ratio], dtype=torch.float64).log(),
        behaviour_logp_N=zero,
        advantage_N=zero + advantage,
        weight_N=zero + 1.0,
        turn_N=zero.long(),
        sequence_N=zero.long(),
    )

    assert float(build_algorithm("agentic_replay_po").objective()(terms).total) == pytest.approx(loss, abs=1e-12)


def test_an_update_in_plain_loops_with_clips_counted(
    told_groups: list[list[Episode]], ragged: list[list[Any]], train_on: Callable[..., Any]
) -> None:
    """One group compares; an attempt alone and a group of equal rewards are left out; rewards below 0."""
    returns = [sum(one.rewards) for one in ragged[0]]
    spread = stdev(returns) + 1e-6
    tokens = [
        (r - fmean(returns)) / spread for r, one in zip(returns, ragged[0], strict=True) for _ in range(sum(one.tokens))
    ]
    ratios = [0.5, 1.5, 1.25, 4.0]
    loss, bound = 0.0, 0
    for at, one in enumerate(tokens):
        rho = ratios[at % 4]
        surrogate = min(rho * one, min(max(rho, 0.8), 1.3) * one)
        held = max(surrogate, 3.0 * one) if one < 0 else surrogate
        loss -= held / len(tokens)
        bound += held != rho * one

    found = train_on(build_algorithm("agentic_replay_po"), *told_groups, ratio=lambda token: ratios[token % 4])

    assert [len(group.members) for group in found.update.groups] == [2, 0, 0]
    assert [a for part in found.advantages for a in part] == pytest.approx(tokens, abs=1e-12)
    assert found.loss == pytest.approx(loss, abs=1e-12)
    assert found.stats["clipped_tokens"] == bound > 0


def test_a_failed_group_teaches_here_and_not_in_grpo_and_replays_are_counted() -> None:
    """Nearest neighbour: from the same records, one success of an earlier step makes three failures a comparison."""
    policy, flat = Tabular.draw(0), Shape(groups=1, size=4, branches=False)
    [[success, *_]] = make_groups(1, policy=policy, shape=flat)
    [failed] = records_of(make_groups(2, policy=policy, shape=replace(flat, constant=0.0)))
    members = tuple(replace(one, key=replace(one.key, step=1)) for one in failed.members)
    failures = [replace(failed, members=members)]
    earlier = record_of(success, RolloutKey(seed=0, step=0, group=0, member=0))
    method = build_algorithm("agentic_replay_po")
    assert isinstance(method.plan.data, SuccessReplay)
    kept = SuccessBuffer(method.plan.data, rules=RewardRules(), seed=0)
    kept.remember([earlier])

    groups, borrowed = kept.replay(failures, step=1)

    def rows(name: str, groups: Any, borrowed: Borrowed | None) -> Assembled:  # noqa: ANN401 (groups of records)
        return assemble(
            groups, algorithm=build_algorithm(name), rules=RewardRules(), version=0, max_age=0, borrowed=borrowed
        )

    mine, other = rows("agentic_replay_po", groups, borrowed), rows("grpo", failures, None)
    assert len(borrowed.replaced) == 1
    assert mine.rows[0].trajectory == earlier.id
    assert [float(row.advantages[0]) for row in mine.rows] == pytest.approx(
        [1.499997, -0.499999, -0.499999, -0.499999], abs=5e-7
    )
    assert not other.rows


def test_a_group_of_one_is_never_helped_and_never_compared(make_episode: Make) -> None:
    assert advantages(make_episode, [1.0]) is None
    assert advantages(make_episode, [-1.0, -1.0]) is None
