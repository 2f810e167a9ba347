"""Decoupled clip and dynamic sampling policy optimization."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
    Epochs,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    outcome_returns,
    reduction_of,
    scale_of,
    spread,
)
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.outcome import overlong_penalty
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo:
    """GRPO with a higher upper bound, every token of the update weighing the same, and groups that differ only."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.28
    overlong: tuple[Count, Count] | None = None
    """(L_max, L_cache) of the penalty on long attempts, in sampled tokens; the paper has (20480, 4096). None: none."""
    refill: Count = 10
    """Rounds of sampling at most until as many groups as were asked for have a signal; 1 makes up for none."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Decoupled clip and dynamic sampling policy optimization (DAPO)",
        source="Yu et al., 2025, arXiv 2503.14476, eq. 8 to 13",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: equal bounds, every trajectory weighing the same",
        notes=(
            "groups whose returns are equal before the penalty are left out and others are sampled in their place, as "
            "many tasks as are missing, in at most `refill` rounds (10 in verl's scripts, which sample whole batches "
            "and throw the surplus away); 1 leaves the update smaller",
            "when the rounds are over the update takes what there is; verl stops the run",
            "the penalty is an option; what a collector's limit cut is excluded by `on_truncation`, as the paper's "
            "overlong filter does",
            "tokens are counted over all turns of an attempt; the paper has one turn",
            "the paper does not say which standard deviation",
        ),
    )

    def __post_init__(self) -> None:
        if self.overlong is not None:
            overlong_penalty(0, limit=self.overlong[0], cache=self.overlong[1])

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, penalty included; None when all returns are equal without it."""
        returns = outcome_returns(group, rules)
        if is_degenerate(returns):
            return None
        shaped = [value + self._penalty(episode) for value, episode in zip(returns, group, strict=True)]
        if is_degenerate(shaped):
            return None
        return spread(group, group_relative(shaped, scale=scale_of(self.std, eps=self.eps)))

    def _penalty(self, episode: Episode) -> float:
        if self.overlong is None:
            return 0.0
        return overlong_penalty(sum(episode.lengths_K), limit=self.overlong[0], cache=self.overlong[1])

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios with separate bounds."""
        return PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups, sampled on until enough of them differ."""
        return Plan(needs_group=True, epochs=self.epochs, refill=self.refill)
