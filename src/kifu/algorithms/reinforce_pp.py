"""REINFORCE++: no critic, advantages normalized over the whole update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kifu.algorithms.composition import (
    Amount,
    Card,
    Epochs,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    TurnCredit,
    outcome_returns,
    reduction_of,
    returns_to_go,
    scale_of,
)
from kifu.credit.episode import Episode
from kifu.credit.group import is_degenerate, mean_reward
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus:
    """Returns to go, normalized by mean and deviation of all trained tokens of the update."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    baseline: Literal["none", "group"] = "none"
    """``group``: the group's mean return is taken off first (REINFORCE++-baseline)."""
    std: Literal["sample", "population"] = "population"
    """Over trained tokens; the paper writes std without saying which, its code divides by their number."""
    eps: Amount = 1e-8
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="REINFORCE++",
        source="Hu, 2025, arXiv 2501.03262, eq. 8 and 10, as other people's documents print them; OpenRLHF",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn, normalized over the update",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: mean and deviation of each group instead of the whole update",
        notes=(
            "the source subtracts a KL to a reference from the reward of every token (eq. 8); not here, use a method "
            "with a reference",
            "accounts of the source disagree on the clip: it takes PPO's, some re-implementations leave it out",
            "an update in which every advantage is equal carries no signal and is left out",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """G_k of every turn, before normalization; with a baseline None when all returns of the group are equal."""
        shift = 0.0
        if self.baseline == "group":
            returns = outcome_returns(group, rules)
            if is_degenerate(returns):
                return None
            shift = mean_reward(returns) or 0.0
        return [TurnCredit(advantages_K=returns_to_go(episode, rules) - shift) for episode in group]

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios."""
        return PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts; advantages are normalized over the update."""
        return Plan(
            needs_group=self.baseline == "group",
            epochs=self.epochs,
            whiten=True,
            whitening=scale_of(self.std, eps=self.eps),
            signal="advantages that differ over the update",
        )
