"""HCAPO: turns that are likelier once the end is known get more of the outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
    StdName,
    TurnCredit,
    outcome_returns,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative
from kifu.credit.hindsight import hindsight_ratios, hindsight_values
from kifu.credit.keyed import relative_by_key
from kifu.credit.reading import RewardRules
from kifu.credit.scored import HindsightScores
from kifu.errors import ArgumentError
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Hcapo:
    """GRPO's advantage, plus a hindsight value of each turn relative to all turns of the group."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    temperature: Positive = 5.0
    """Divides the hindsight log-probability."""
    ratio_low: Amount = 0.8
    ratio_high: Amount = 1.2
    decay: Share = 0.95
    """Discount of one turn from the end."""
    weight: Amount = 1.0
    """Of the hindsight part."""
    do_no_harm: bool = True
    """Whether a negative hindsight part is dropped in a trajectory that succeeded."""
    hindsight_template: str = "In the end: {final}\nOutcome: {outcome}"
    """What is added to the last thing shown before a turn when it is scored again."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "trajectory"

    def __post_init__(self) -> None:
        self._scores  # noqa: B018 - refuses a template without an end
        hindsight_ratios((), temperature=self.temperature, low=self.ratio_low, high=self.ratio_high)

    card: ClassVar[Card] = Card(
        name="Hindsight credit assignment policy optimization",
        source="arXiv 2603.08754, from a near-verbatim account",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message, scored again with the episode's end in view",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="tokens of each trajectory, then trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: no hindsight part",
        notes=(
            "`hindsight_logprob` of every turn is asked from the weights published when the rollout ends: mean "
            "log-probability of its tokens after the history before it and how the episode ended",
            "not published: the text that tells the end (`hindsight_template`), the clip, the type of deviation, eps, "
            "the average (all ours); the optional smoothing is not here, its formula was not found",
            "not here: the KL to a reference (0.01, for question answering 0.001)",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_outcome + weight A_hindsight; None when all of it is 0."""
        scale = scale_of(self.std, eps=self.eps)
        returns = [outcome_returns([episode], rules)[0] if episode.num_turns else 0.0 for episode in group]
        outcomes = group_relative(returns, scale=scale)
        values = [self._values(episode, value) for episode, value in zip(group, returns, strict=True)]
        hindsight = relative_by_key(values, [[()] * q_K.size for q_K in values], scale=scale)
        found: list[TurnCredit] = []
        for episode, outcome, micro_K in zip(group, outcomes, hindsight, strict=True):
            kept_K = np.maximum(micro_K, 0.0) if self.do_no_harm and _succeeded(episode) else micro_K
            found.append(TurnCredit(advantages_K=float(outcome or 0.0) + self.weight * kept_K))
        return unless_silent(found)

    def _values(self, episode: Episode, outcome: float) -> Doubles:
        logprobs = [float(turn.hindsight_logprob or 0.0) for turn in episode.facts("hindsight_logprob")]
        ratios_K = hindsight_ratios(logprobs, temperature=self.temperature, low=self.ratio_low, high=self.ratio_high)
        return hindsight_values(ratios_K, outcome=outcome, gamma=self.decay)

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
            signal="returns that differ, or turns whose value in hindsight does",
        )

    @property
    def _scores(self) -> HindsightScores:
        return HindsightScores(template=self.hindsight_template)


def _succeeded(episode: Episode) -> bool:
    if episode.success is None:
        raise ArgumentError(
            f"{episode.place()}: the method needs `success`, which nobody recorded; or set do_no_harm = false"
        )
    return episode.success
