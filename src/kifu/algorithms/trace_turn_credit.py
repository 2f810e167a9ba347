"""TRACE, turn credit: a tool turn is worth how much closer it brought the gold answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
    Epochs,
    Feedback,
    Plan,
    Positive,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    outcome_returns,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.gold import log_gap_progress, tool_turn_logprobs, window_credit
from kifu.credit.group import group_relative
from kifu.credit.reading import RewardRules
from kifu.credit.scored import GoldScores, ScoringWeights
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurnCredit:
    """The outcome's relative reward, plus progress of the gold answer's likelihood over the next tool turns."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    window: Count = 3
    """Transitions whose progress a turn is credited with."""
    decay: Share = 0.8
    """Discount of one transition inside the window."""
    gap_eps: Positive = 0.1
    """Added to minus the gold answer's log-probability; the paper's appendix shows figures with 0.001."""
    weight: Amount = 0.2
    """Of the turn credit."""
    outcome_weight: Amount = 1.0
    fill: Amount | None = None
    """Weight of the outcome where the window reaches the last transition; others' reading of the paper is 2.0."""
    gold_template: str = "{answer}"
    """What the assistant would write where the gold answer is scored."""
    scored_by: ScoringWeights = "initial"
    """Whose weights score it."""
    std: StdName = "population"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    def __post_init__(self) -> None:
        self._scores  # noqa: B018 - refuses a template without the answer

    card: ClassVar[Card] = Card(
        name="TRACE: turn-level reward assignment via credit estimation",
        source="arXiv 2607.13988, from others' accounts that reproduce the appendix's numbers; no code was found",
        feedback=(Feedback.OUTCOME, Feedback.REWARD_MODEL),
        data=Source.FRESH,
        decision_unit="tool turn",
        turn="assistant message that calls a tool; the prefix before each is scored against the gold answer",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="igpo: differences of probability, summed to the end, instead of log gaps averaged in a window",
        notes=(
            "the gold answer's log-probability is asked before every turn and after the last, from the weights the "
            "method began with (`scored_by`), in a request of its own: in the policy's context it would be leaked",
            "not published: the text around the gold answer (`gold_template`, ours: none), what is done at the last "
            "turns (`fill`, ours: nothing), what a final answer gets (ours: the outcome alone), clip and average "
            "(ours: 0.2, tokens)",
            "turn credit is not normalized over the group, so a group of equal outcomes still teaches",
            "an observation that contains the answer is rewarded whether or not the policy uses it",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_outcome + weight c_k on tool turns, A_outcome on the others; None when all of it is 0."""
        outcomes = group_relative(outcome_returns(group, rules), scale=scale_of(self.std, eps=self.eps))
        return unless_silent(
            [
                TurnCredit(advantages_K=self._turns(episode, float(outcome or 0.0)))
                for episode, outcome in zip(group, outcomes, strict=True)
            ]
        )

    def _turns(self, episode: Episode, outcome: float) -> Doubles:
        tools_K = np.array([turn.calls_tool for turn in episode.facts("calls_tool")], dtype=np.bool_)
        found_K = np.full(tools_K.size, self.outcome_weight * outcome)
        if tools_K.any():
            progress = log_gap_progress(tool_turn_logprobs(episode), eps=self.gap_eps)
            found_K[tools_K] += self.weight * window_credit(
                progress, window=self.window, gamma=self.decay, outcome=outcome, fill=self.fill
            )
        return found_K

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
            signal="returns that differ, or a tool turn that moved the gold answer",
            presumed=("calls_tool",),
        )

    @property
    def _scores(self) -> GoldScores:
        return GoldScores(template=self.gold_template, weights=self.scored_by, after=True)
