"""DUPO: printed advantages, copies in loss and denominators."""

from collections.abc import Callable
from typing import Any

import pytest

from kifu.algorithms.dapo import Dapo
from kifu.algorithms.dupo import Dupo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules

Make = Callable[..., Episode]
Train = Callable[..., Any]
REWARDS = {"A": [1.0] * 4, "B": [1.0, 0.0, 0.0, 0.0], "C": [0.0] * 4, "D": [1.0, 1.0, 0.0, 0.0]}


@pytest.fixture
def groups(make_attempt: Make) -> list[list[Episode]]:
    """The printed step of four tasks; lengths 10, 20, 30 and 40 in every group."""
    return [
        [make_attempt(reward, [10 * (at + 1)], name=f"{task}{at}") for at, reward in enumerate(rewards)]
        for task, rewards in REWARDS.items()
    ]


@pytest.mark.parametrize(
    ("task", "printed"), [("B", [1.732051, -0.577350, -0.577350, -0.577350]), ("D", [1.0, 1.0, -1.0, -1.0])]
)
def test_mixed_groups_have_the_printed_advantages(groups: list[list[Episode]], task: str, printed: list[float]) -> None:
    found = Dupo().credit(groups[list(REWARDS).index(task)], RewardRules())
    assert found is not None
    assert [credit.advantages_K[0] for credit in found] == pytest.approx(printed, abs=5e-7)


@pytest.mark.parametrize("task", ["A", "C"])
def test_groups_without_signal_have_no_credit(groups: list[list[Episode]], task: str) -> None:
    assert Dupo().credit(groups[list(REWARDS).index(task)], RewardRules()) is None


def test_the_objective_at_ratio_one_is_the_printed_token_mean(groups: list[list[Episode]], train_on: Train) -> None:
    """Group B alone: sum of A times length over the sum of lengths is -.346410; the mean over trajectories is 0."""
    assert -train_on(Dupo(), groups[1]).loss == pytest.approx(-0.346410, abs=5e-7)
    assert -train_on(Dupo(average="trajectory"), groups[1]).loss == pytest.approx(0.0, abs=1e-12)


def test_free_places_are_filled_with_copies_that_count_in_loss_and_denominators(
    groups: list[list[Episode]], train_on: Train
) -> None:
    """Against the update in which the drawn groups are written out as often as they were drawn."""
    seen = set()
    for seed in range(8):
        found = train_on(Dupo(), *groups, seed=seed, ratio=lambda token: 1.0)
        copies = [group.copies for group in found.update.groups]
        assert copies[0] == copies[2] == 0
        assert sum(copies) == 4
        assert copies[1] >= 1
        assert copies[3] >= 1
        written_out = train_on(Dapo(std="population", eps=0.0), *(groups[1:2] * copies[1] + groups[3:] * copies[3]))
        assert found.loss == pytest.approx(written_out.loss)
        assert found.update.denominators == written_out.update.denominators
        assert found.update.denominators.tokens == 400
        assert found.weights[0][0] == pytest.approx(copies[1] / 400)
        seen.add(tuple(copies))
    assert len(seen) > 1, "which groups are copied is drawn"


def test_its_neighbour_trains_the_informative_groups_once(groups: list[list[Episode]], train_on: Train) -> None:
    plain = train_on(Dapo(std="population", eps=0.0), *groups)
    assert [group.copies for group in plain.update.groups] == [0, 1, 0, 1]
    assert plain.update.denominators.tokens == 200


def test_a_step_without_an_informative_group_trains_nothing(groups: list[list[Episode]], train_on: Train) -> None:
    found = train_on(Dupo(), groups[0], groups[2])
    assert [group.copies for group in found.update.groups] == [0, 0]
    assert (found.weights, found.loss) == ([], 0.0)


def test_bounds_hold_on_copies_too(groups: list[list[Episode]], train_on: Train) -> None:
    found = train_on(Dupo(), *groups, ratio=lambda token: 1.5)
    assert found.stats["clipped_tokens"] == 10 + 10 + 20


@pytest.mark.parametrize("rewards", [[0.1 + 0.2, 0.3], [0.0, 1e-200]], ids=str)
def test_rounding_noise_is_no_signal(make_attempt: Make, rewards: list[float]) -> None:
    """Nothing is added to the deviation, which is the noise itself or underflows."""
    group = [make_attempt(reward, [10], name=str(at)) for at, reward in enumerate(rewards)]
    assert Dupo().credit(group, RewardRules()) is None
