"""Clipped importance-weight policy optimization."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Amount,
    Card,
    Epochs,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    reduction_of,
    relative_credit,
    scale_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import CappedWeight, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """The importance weight is capped, not the update: no token loses its gradient."""

    clip_high: Amount = 4.0
    """The largest weight is 1 + clip_high."""
    clip_low: Share | None = None
    """The least weight is 1 - clip_low; None is no lower cap, as in the paper."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Clipped importance-sampling-weight policy optimization (CISPO)",
        source="MiniMax, 2025 (MiniMax-M1), arXiv 2506.13585, eq. 4 and 5",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, a weight without gradient on log pi, capped at 1 + clip_high",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="dapo: a token beyond a bound has no gradient",
        notes=(
            "the value of the cap is not published; a largest weight of 5 is ours",
            "the paper leaves groups of equal rewards out and penalizes length as DAPO does; the penalty is not here",
            "the paper does not say which standard deviation",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, the same for every turn; None when all returns are equal."""
        return relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))

    def objective(self) -> Objective:
        """Capped importance weight times A log pi."""
        return PolicyObjective(surrogate=CappedWeight(level=TokenRatio(), high=self.clip_high, low=self.clip_low))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(needs_group=True, epochs=self.epochs)
