"""Cross-segment GAE: credit through context compaction."""

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
    reduction_of,
    token_credit,
)
from kifu.credit.episode import Episode
from kifu.credit.gae_tokens import compaction_gae, length_lambda, token_values
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio, ValueRegression


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionGae:
    """Token GAE inside each context, shrunk by the tokens of the contexts that follow it."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    gamma: Share = 1.0
    """Discount of one token."""
    scale: Positive = 1.5
    """lam = 1 - 1 / (scale l), l the trained tokens of the trajectory."""
    epochs: Epochs = 1
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    whiten: bool = False
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Cross-segment GAE (CompactionRL)",
        source="arXiv 2607.05378, from three accounts that agree",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="token",
        turn="assistant message; turns that one context held form a segment, a summary is a turn like any other",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens, so that a trajectory cut into more segments gains no weight",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="bilevel_gae: levels are turns and tokens instead of contexts and tokens",
        notes=(
            "needs the critic's value before every token (`values_N`) and the context of every turn (`segment`); the "
            "engines here value turns, so it trains where a turn is one token (`recurrent`), and works on inputs that "
            "carry token values",
            "every segment ends with all that is paid later: for a reward at the end, the same reward",
            "which length l is was not found; clip, coefficients and passes are ours",
            "not here: the 50 steps that train the critic alone, and one rollout a task",
            "equal rewards silence nothing: where every advantage is 0, the critic still learns, and its step carries "
            "moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Advantages token by token."""
        found: list[TurnCredit] = []
        for episode in group:
            lam = length_lambda(sum(episode.lengths_K), scale=self.scale)
            advantages_KN = compaction_gae(episode, gamma=self.gamma, lam=lam)
            found.append(token_credit(advantages_KN, values_KN=token_values(episode)))
        return found

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios and value regression."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            value=ValueRegression(coefficient=self.value_coefficient, clip=self.value_clip),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts with a critic."""
        return Plan(
            needs_value=True, token_values="needed", epochs=self.epochs, whiten=self.whiten, presumed=("segment",)
        )
