"""PPO on the process of turns: one advantage, one ratio and one weight a turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

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
    RatioLevel,
    Reduction,
    TokenRatio,
    TurnRatio,
    ValueRegression,
)

LEVELS: dict[str, RatioLevel] = {"turn": TurnRatio(aggregation="geometric"), "token": TokenRatio()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPpo:
    """GAE over turns under the geometric mean ratio of a turn (StepPO); with the token ratio, Turn-PPO."""

    ratio: Literal["turn", "token"] = "turn"
    """``turn``: exp of the mean log-ratio of the turn's tokens (StepPO); ``token``: each its own (Turn-PPO)."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    lam: Share = 0.95
    epochs: Epochs = 1
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    entropy_coefficient: Amount = 0.0
    whiten: bool = False
    """Normalize advantages over the trained tokens of the update."""
    average: ReductionName = "turn"

    card: ClassVar[Card] = Card(
        name="Turn-level PPO (StepPO, Turn-PPO)",
        source="StepPO, arXiv 2604.18401; `ratio = token`: Turn-PPO, arXiv 2512.17008; both from others' accounts",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message; its value is that of the last token before it",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="turn, exp of the mean log-ratio, clipped to [1 - clip_low, 1 + clip_high]; `ratio = token`: token",
        denominator="turns; tokens of a turn share its weight",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="ppo: the same credit under token ratios, averaged over tokens instead of turns",
        notes=(
            "clip, passes and coefficients are ours: what was read of the papers does not give them",
            "all tokens of a turn hit the clip together or not at all",
            "with `ratio = token` and `average = token` only passes, bonus and whitening differ from ppo",
            "equal rewards silence nothing: where every advantage is 0, the critic still learns, and its step carries "
            "moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_k by GAE over turns; the critic's target is A_k + V(h_k)."""
        return gae_credit(group, rules, lam=self.lam)

    def objective(self) -> Objective:
        """Clipped surrogate on the chosen ratio, value regression, entropy bonus where one is set."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=LEVELS[self.ratio], low=self.clip_low, high=self.clip_high),
            entropy=EntropyBonus(coefficient=self.entropy_coefficient) if self.entropy_coefficient else None,
            value=ValueRegression(coefficient=self.value_coefficient, clip=self.value_clip),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts with a critic."""
        return Plan(needs_value=True, epochs=self.epochs, whiten=self.whiten)
