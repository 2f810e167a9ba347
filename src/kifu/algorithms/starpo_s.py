"""StarPO-S: PPO on the groups whose rewards spread most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

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
    outcome_returns,
    reduction_of,
)
from kifu.credit.episode import Episode
from kifu.credit.group import is_degenerate
from kifu.credit.reading import RewardRules
from kifu.credit.selection import TopSpread
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
class StarPoS:
    """A critic's credit, trained on the most uncertain quarter of the tasks."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Groups that are kept, of all groups of the step."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.28
    lam: Share = 1.0
    epochs: Epochs = 1
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    entropy_coefficient: Amount = 0.001
    whiten: bool = True
    """Normalize advantages over the trained tokens of the update."""
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="StarPO-S (stabilized state-thinking-actions-reward policy optimization)",
        source="Wang et al., 2025 (RAGEN), arXiv 2504.20073, section on StarPO-S; RAGEN's settings",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message of up to 5 actions; here one message",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="ppo: trains every group, with equal bounds",
        notes=(
            "the selection is by the sample deviation of the verdicts' rewards; groups of equal rewards are never kept",
            "GAE runs over turns here, over tokens in the source; with gamma = lam = 1 both are return minus value",
            "selecting by spread moves the distribution of trained tasks; the plan holds which were",
            "coefficient of the critic and whitening are ours, not published for this method",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_k by GAE over turns; None when all rewards of the group are equal."""
        verdicts = [episode.outcome for episode in group]
        rewards = outcome_returns(group, rules) if None in verdicts else verdicts
        return None if is_degenerate(rewards) else gae_credit(group, rules, lam=self.lam)

    def objective(self) -> Objective:
        """Clipped surrogate with separate bounds, value regression, entropy bonus."""
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
        """Fresh rollouts in groups with a critic; the groups of the widest spread are trained."""
        return Plan(
            needs_group=True,
            needs_value=True,
            epochs=self.epochs,
            whiten=self.whiten,
            selection=TopSpread(share=self.share),
            signal="rewards that differ",
        )
