"""Success replay: the printed advantages, and where it leaves GRPO."""

from collections.abc import Callable

import pytest
import torch

from kifu.algorithms import build_algorithm
from kifu.credit import Episode, FreshRollouts, SuccessReplay
from kifu.credit.reading import RewardRules
from kifu.objectives import Terms

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
