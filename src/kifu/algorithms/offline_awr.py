"""Offline advantage-weighted regression on stored trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kifu.algorithms.composition import (
    Card,
    Epochs,
    Feedback,
    Plan,
    Positive,
    ReductionName,
    Share,
    Source,
    TurnCredit,
    reduction_of,
)
from kifu.credit import PopulationStd, StoredTrajectories, gae, returns_over_state, returns_over_task
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, Reduction, WeightedLikelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineAwr:
    """Recorded actions are imitated, the more the better what followed was than what the data expects there."""

    baseline: Literal["task", "state", "critic"] = "task"
    """What an action is compared with: the mean return of the task's records, of the state's, or the recorded value."""
    lam: Share = 0.95
    """Decay of residuals; only where ``baseline`` is ``critic``."""
    temperature: Positive = 1.0
    cap: Positive = 20.0
    """Largest weight of an action."""
    normalize: bool = True
    """Normalize advantages over the tokens of the update, as the authors' code does over its buffer."""
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Offline advantage-weighted regression",
        source="Peng et al., 2019 (arXiv 1910.00177); temperature, cap and normalization as in the authors' code",
        feedback=(Feedback.OUTCOME,),
        data=Source.FIXED,
        decision_unit="turn",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="records of finished runs, of any age; each group once a pass, any number of passes",
        ratio="none: every action is one the data holds, and no ratio to the behaviour is taken",
        denominator="trained tokens",
        on_policy=False,
        online=False,
        family="policy-based",
        neighbour="sft: on the same records, the same likelihood with every weight 1",
        notes=(
            "why this method: it takes no ratio over long token sequences, whose variance nothing bounds, and asks for "
            "no value of an action the data does not hold, where a critic extrapolates; yet it learns from rewards",
            "it recombines recorded actions and finds no others: read the coverage of evaluated states and actions",
            "the correction is the weight min(exp(A / temperature), cap); states stay distributed as in the data",
            "the authors fit V to their buffer; here it is a mean of recorded returns, or the recorded critic's: ours",
            "advantages are normalized over an update, not over all the data: ours",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """G_k minus what the data expects there; the objective weighs an action by its exponential."""
        match self.baseline:
            case "task":
                found = returns_over_task(group, gamma=rules.gamma)
            case "state":
                found = returns_over_state(group, gamma=rules.gamma)
            case "critic":
                found = [gae(episode, gamma=rules.gamma, lam=self.lam) for episode in group]
        return [TurnCredit(advantages_K=advantages_K) for advantages_K in found]

    def objective(self) -> Objective:
        """- min(exp(A / temperature), cap) log pi."""
        return WeightedLikelihood(temperature=self.temperature, cap=self.cap)

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Records of finished runs."""
        return Plan(
            data=StoredTrajectories(),
            epochs=self.epochs,
            whiten=self.normalize,
            whitening=PopulationStd(eps=1e-5),
            signal="advantages that differ over the update",
        )
