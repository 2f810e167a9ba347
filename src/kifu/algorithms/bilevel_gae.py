"""Bi-level GAE: over turn ends, then over the tokens of each turn."""

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
from kifu.credit.gae_tokens import bilevel_gae, token_values
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio, ValueRegression


@dataclass(frozen=True, slots=True, kw_only=True)
class BilevelGae:
    """PPO whose advantages are estimated turn by turn, then token by token inside the turn."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    gamma: Share = 1.0
    """Discount of one token."""
    lam: Share = 1.0
    """Decay per token."""
    turn_gamma: Share = 0.95
    """Discount of one turn."""
    turn_lam: Share = 1.0
    """Decay per turn; the released function has one for both levels."""
    epochs: Epochs = 1
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    whiten: bool = True
    """Normalize advantages over the trained tokens of the update."""
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Bi-level GAE (VAGEN)",
        source="arXiv 2510.16907; RAGEN ragen/trainer/core_algos.py, compute_bi_level_gae_advantage_return",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn, then token",
        turn="assistant message, told apart by the record and not by its reward",
        updates="policy and critic",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="ppo: one level, over turns",
        notes=(
            "needs the critic's value before every token (`values_N`); engines here value turns, so it trains where a "
            "turn is one token (`recurrent`), and works on inputs that carry token values",
            "the released function finds turn ends by their reward: a turn of reward 0 vanishes, and a last turn of "
            "reward 0 raises; here ends are explicit, as in later versions",
            "of the token returns only the one at a turn's first token is handed on as the critic's target",
            "the whitening of the update has the population deviation, theirs the sample one; coefficients are ours",
            "equal rewards silence nothing: where every advantage is 0, the critic still learns, and its step carries "
            "moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Advantages token by token."""
        found: list[TurnCredit] = []
        for episode in group:
            values_KN = token_values(episode)
            advantages_KN = bilevel_gae(
                episode.rewards_K,
                values_KN,
                gamma=self.gamma,
                lam=self.lam,
                turn_gamma=self.turn_gamma,
                turn_lam=self.turn_lam,
                final_value=episode.boundary,
            )
            found.append(token_credit(advantages_KN, values_KN=values_KN))
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
        return Plan(needs_value=True, token_values="needed", epochs=self.epochs, whiten=self.whiten)
