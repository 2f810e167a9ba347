"""Advantage actor-critic over turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Amount,
    Card,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    TurnCredit,
    gae_credit,
    reduction_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import EntropyBonus, Objective, PolicyObjective, Reduction, ScoreFunction, ValueRegression


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCritic:
    """A2C with generalized advantages over turns."""

    lam: Share = 1.0
    """Decay of the residuals; 1 is return minus value."""
    value_coefficient: Amount = 0.5
    entropy_coefficient: Amount = 0.01
    average: ReductionName = "turn"

    card: ClassVar[Card] = Card(
        name="Advantage actor-critic",
        source="Mnih et al., 2016; advantages from Schulman et al., 2016, eq. 16",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout once",
        ratio="none; the realised ratio is measured before the update",
        denominator="turns",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="ppo: the same credit with a clipped ratio and several passes",
        notes=(
            "equal rewards silence nothing: where every advantage is 0, critic and entropy bonus still learn, and "
            "their step carries moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_k by GAE over turns; the critic's target is A_k + V(h_k)."""
        return gae_credit(group, rules, lam=self.lam)

    def objective(self) -> Objective:
        """- A log pi, value regression, entropy bonus."""
        return PolicyObjective(
            surrogate=ScoreFunction(),
            entropy=EntropyBonus(coefficient=self.entropy_coefficient) if self.entropy_coefficient else None,
            value=ValueRegression(coefficient=self.value_coefficient),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts, once, with a critic."""
        return Plan(needs_value=True)
