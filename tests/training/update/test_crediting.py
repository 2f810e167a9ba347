"""Advantages normalized over an update: which tokens are in the statistics, and when nothing is left."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np
import pytest

from kifu.algorithms import Card, Plan, TurnCredit, build_algorithm
from kifu.credit import Episode, SampleStd
from kifu.credit.reading import RewardRules
from kifu.errors import UsageError
from kifu.objectives import Objective, PolicyObjective, Reduction, TokenMean
from kifu.training.update.crediting import CreditedUpdate, Member, credit_groups


@dataclass(frozen=True)
class Fixed:
    """Credits the turns of the one episode of a group as its rewards say; negative rewards mask their turn."""

    copies: int = 1
    settings: Plan = field(default_factory=lambda: Plan(whiten=True))
    card: ClassVar[Card] = build_algorithm("grpo").card

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit]:
        """Advantages are the rewards."""
        return [
            TurnCredit(
                advantages_K=episode.rewards_K,
                kept_K=episode.rewards_K >= 0,
                copies=self.copies if episode.num_turns > 1 else 1,
            )
            for episode in group
        ]

    def objective(self) -> Objective:
        """Any."""
        return PolicyObjective()

    @property
    def reduction(self) -> Reduction:
        """Tokens."""
        return TokenMean()

    @property
    def plan(self) -> Plan:
        """As given."""
        return self.settings


def update(algorithm: Fixed, *episodes: Sequence[float]) -> CreditedUpdate:
    """One group per list of rewards; turn k has k + 1 tokens."""
    groups = [
        [
            Member(
                episode=Episode(rewards_K=np.array(rewards), terminated=True),
                turns_N=np.repeat(np.arange(len(rewards)), np.arange(1, len(rewards) + 1)),
            )
        ]
        for rewards in episodes
    ]
    return credit_groups(groups, algorithm=algorithm, rules=RewardRules(), seed=0)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("scale", ["default", "sample"])
def test_masked_turns_are_in_no_statistic_and_copies_count(copies: int, scale: str) -> None:
    """Turns worth 1 (1 token), -9 (masked), 4 (3 tokens), standing ``copies`` times, and a turn worth 2 (1 token)."""
    plan = Plan(whiten=True) if scale == "default" else Plan(whiten=True, whitening=SampleStd(eps=0.5))

    found = update(Fixed(copies=copies, settings=plan), [1.0, -9.0, 4.0], [2.0])

    tokens = [1.0, 4.0, 4.0, 4.0] * copies + [2.0]
    mean = sum(tokens) / len(tokens)
    squares = sum((value - mean) ** 2 for value in tokens)
    divisor = sqrt(squares / len(tokens)) + 1e-8 if scale == "default" else sqrt(squares / (len(tokens) - 1)) + 0.5
    first, second = (group.members[0] for group in found.groups)
    assert first.advantages_N[[0, 3, 4, 5]].tolist() == pytest.approx([(v - mean) / divisor for v in (1, 4, 4, 4)])
    assert second.advantages_N.tolist() == pytest.approx([(2 - mean) / divisor])
    assert first.weights_N.tolist() == pytest.approx(
        [copies / len(tokens), 0, 0, *[copies / len(tokens)] * 3], abs=1e-15
    )


def test_an_update_of_equal_advantages_is_left_out_unless_a_critic_learns_from_it() -> None:
    plain = update(Fixed(), [0.1, 0.1], [0.1])
    critic = update(Fixed(settings=Plan(whiten=True, needs_value=True)), [0.1, 0.1], [0.1])

    assert [(group.is_informative, group.copies, group.members) for group in plain.groups] == [(False, 0, ())] * 2
    assert (plain.denominators.tokens, critic.denominators.tokens) == (0, 4)
    assert all(not one.advantages_N.any() for group in critic.groups for one in group.members)


def test_without_whitening_equal_advantages_are_kept() -> None:
    found = update(Fixed(settings=Plan()), [0.5], [0.5])
    assert [one.advantages_N.tolist() for group in found.groups for one in group.members] == [[0.5], [0.5]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], "gave 2 credits for 1 episodes"),
        ([], "gave 0 credits for 1 episodes"),
        ([[1.0, 1.0, 1.0]], "`advantages_K` has 3 entries for 2 turns"),
        ([[1.0]], "`advantages_K` has 1 entries for 2 turns"),
    ],
)
def test_credit_that_does_not_fit_is_refused(given: list[list[float]], told: str) -> None:
    """One advantage too many would be dropped, and one too few is another turn's."""

    class Unfit(Fixed):
        def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit]:
            return [TurnCredit(advantages_K=np.array(numbers)) for numbers in given]

    with pytest.raises(UsageError, match=told):
        update(Unfit(), [0.0, 1.0])
