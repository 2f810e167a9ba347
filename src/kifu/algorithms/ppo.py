"""Proximal policy optimization over turns, with a critic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Amount,
    Card,
    Epochs,
    Feedback,
    Plan,
    Positive,
    ReductionName,
    Share,
    Source,
    TurnCredit,
    gae_credit,
    reduction_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import (
    ClippedRatio,
    EntropyBonus,
    Objective,
    PolicyObjective,
    Reduction,
    TokenRatio,
    ValueRegression,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ppo:
    """The clipped surrogate, several passes over the same rollouts."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    lam: Share = 0.95
    epochs: Epochs = 4
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    entropy_coefficient: Amount = 0.01
    whiten: bool = True
    """Normalize advantages over the trained tokens of the update."""
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Proximal policy optimization",
        source="Schulman et al., 2017, eq. 7; advantages from Schulman et al., 2016, eq. 16",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="grpo: the baseline is the group's mean instead of a critic",
        notes=(
            "equal rewards silence nothing: where every advantage is 0, critic and entropy bonus still learn, and "
            "their step carries moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_k by GAE over turns; the critic's target is A_k + V(h_k)."""
        return gae_credit(group, rules, lam=self.lam)

    def objective(self) -> Objective:
        """Clipped surrogate, value regression, entropy bonus."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            entropy=EntropyBonus(coefficient=self.entropy_coefficient) if self.entropy_coefficient else None,
            value=ValueRegression(coefficient=self.value_coefficient, clip=self.value_clip),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts, several passes, with a critic."""
        return Plan(needs_value=True, epochs=self.epochs, whiten=self.whiten)
