"""Group relative policy optimization."""

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
from kifu.objectives import ClippedRatio, KlPenalty, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """Every token of a trajectory gets the trajectory's reward relative to its group."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    std: StdName = "sample"
    """What the centred reward is divided by; the paper writes std without saying which, public code uses n - 1."""
    eps: Amount = 1e-6
    kl: Amount = 0.0
    """Coefficient of k3 against the policy the stage began with, inside the loss; the paper's is 0.04."""
    epochs: Epochs = 1
    average: ReductionName = "trajectory"

    card: ClassVar[Card] = Card(
        name="Group relative policy optimization",
        source="Shao et al., 2024 (DeepSeekMath), eq. 3 and section 4.1.2",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="tokens of each trajectory, then trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="ppo: the baseline is a critic instead of the group's mean",
        notes=(
            "groups of equal rewards are left out: they carry no signal and would only change denominators",
            "the paper adds 0.04 times k3 to a reference; here `kl` is 0 unless set, and no reference is held then",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, the same for every turn; None when all returns are equal."""
        return relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios; with ``kl`` a penalty against the reference."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            kl=KlPenalty(coefficient=self.kl, estimator="k3") if self.kl else None,
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(needs_group=True, epochs=self.epochs, needs_reference=self.kl > 0)
