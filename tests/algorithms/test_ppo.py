"""What makes PPO itself: passes over the same rollouts, whitening, the clip."""

from kifu.algorithms import build_algorithm
from kifu.objectives import ClippedRatio, PolicyObjective, TokenRatio


def test_the_published_setting_makes_four_clipped_passes_over_whitened_advantages() -> None:
    algorithm = build_algorithm("ppo")
    objective = algorithm.objective()

    assert (algorithm.plan.epochs, algorithm.plan.whiten) == (4, True)
    assert isinstance(objective, PolicyObjective)
    assert objective.surrogate == ClippedRatio(level=TokenRatio(), low=0.2, high=0.2)
    assert objective.value is not None
    assert objective.value.clip is None


def test_without_its_coefficient_the_entropy_bonus_is_gone() -> None:
    objective = build_algorithm("ppo", {"entropy_coefficient": 0.0}).objective()

    assert isinstance(objective, PolicyObjective)
    assert objective.entropy is None
    assert not objective.needs_entropy
