"""Group sequence policy optimization."""

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
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, SequenceRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo:
    """GRPO's credit with one length-normalized ratio a trajectory, clipped as a whole."""

    clip_low: Share = 3e-4
    clip_high: Amount = 4e-4
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "trajectory"

    card: ClassVar[Card] = Card(
        name="Group sequence policy optimization (GSPO)",
        source="Zheng et al., 2025, arXiv 2507.18071, eq. 5 to 7; bounds from section 5.1",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="trajectory, geometric mean over its sampled tokens, clipped to [1 - clip_low, 1 + clip_high]; "
        "the clip takes whole trajectories out",
        denominator="tokens of each trajectory, then trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: every token has its own ratio",
        notes=(
            "the paper has one answer; here the sequence is every sampled token of all turns, observations left out",
            "the true ratio of a trajectory is the product; the geometric mean is its root and biased off-policy",
            "the paper does not say which standard deviation",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, the same for every turn; None when all returns are equal."""
        return relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))

    def objective(self) -> Objective:
        """Clipped surrogate on trajectory ratios."""
        return PolicyObjective(surrogate=ClippedRatio(level=SequenceRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(needs_group=True, epochs=self.epochs)
