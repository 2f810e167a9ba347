"""IGPO: a turn is worth what it added to the probability of the gold answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

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
    reduction_of,
    token_credit,
    unless_silent,
)
from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.gold import information_gain
from kifu.credit.group import Unscaled
from kifu.credit.keyed import relative_by_key, relative_by_position
from kifu.credit.reading import RewardRules
from kifu.credit.returns import discounted_returns
from kifu.credit.scored import GoldScores
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Igpo:
    """Information gain of every turn but the last, then the outcome, summed to the end, relative to the group."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    gamma: Share = 1.0
    """Discount of one turn in the sum of gains."""
    baseline: Literal["position", "turn"] = "position"
    """``position``: the group's mean at the same trained token, as in the released code, where members that are over
    count as 0; ``turn``: the mean of the members that reached the same turn (ours)."""
    gold_template: str = "\nNow there's enough information to answer\n</think>\n<answer>\n{answer}\n</answer>"
    """What the assistant would write where the gold answer is scored; the released code's."""
    epochs: Epochs = 1
    average: ReductionName = "token"

    def __post_init__(self) -> None:
        self._scores  # noqa: B018 - refuses a template without the answer

    card: ClassVar[Card] = Card(
        name="Information gain-based policy optimization",
        source="arXiv 2510.14967; IGPO verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage",
        feedback=(Feedback.OUTCOME, Feedback.REWARD_MODEL),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message; the history before each is scored against the gold answer",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="trace_turn_credit: log gaps averaged in a window, beside an outcome relative to the group",
        notes=(
            "the gold answer's log-probability is asked before every turn, from the weights published when the rollout "
            "ends, in a request of its own; the text before the answer is that of the released code",
            "a baseline per token position mixes different turns of different members and makes the credit of a turn's "
            "tokens differ; it is the released default all the same",
            "the released function takes an argument for the deviation and does not divide by it; neither do we",
            "position counts trained tokens here, those of the padded response there; a gain reaches back over "
            "observations here, as in the paper, where the released function stops at masked positions",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Returns of gains and outcome, minus the baseline; None when all of it is 0."""
        returns = [self._returns(episode) for episode in group]
        if self.baseline == "turn":
            turns = [range(g_K.size) for g_K in returns]
            found = relative_by_key(returns, turns, scale=Unscaled())
            return unless_silent([TurnCredit(advantages_K=a_K) for a_K in found])
        lengths = [episode.lengths_K for episode in group]
        spread = [np.repeat(g_K, lengths_K) for g_K, lengths_K in zip(returns, lengths, strict=True)]
        found = relative_by_position(spread)
        return unless_silent(
            [
                token_credit(np.split(a_N, np.cumsum(lengths_K)[:-1]) if lengths_K else ())
                for a_N, lengths_K in zip(found, lengths, strict=True)
            ]
        )

    def _returns(self, episode: Episode) -> Doubles:
        known = [float(turn.gold_logprob or 0.0) for turn in episode.facts("gold_logprob")]
        paid_K = np.array(episode.rewards_K)
        if known:
            paid_K[:-1] += information_gain(known)
        return discounted_returns(paid_K, gamma=self.gamma, final_value=episode.boundary)

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios."""
        return PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(
            needs_group=True,
            epochs=self.epochs,
            scores=self._scores,
            signal="gains or outcomes that differ at one place",
        )

    @property
    def _scores(self) -> GoldScores:
        return GoldScores(template=self.gold_template)
