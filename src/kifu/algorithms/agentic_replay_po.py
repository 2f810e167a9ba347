"""Agentic Replay Policy Optimization: group-relative credit, and a kept success where a whole group fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kifu.algorithms.composition import (
    Amount,
    Card,
    DualClip,
    Epochs,
    Feedback,
    Level,
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
from kifu.credit import SuccessReplay
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticReplayPo:
    """Where a whole group fails, a success of an earlier step at the same task takes the place of one attempt."""

    correction: Literal["none", "ratio"] = "none"
    """``none``: the ratio of replayed tokens is taken over the policy that begins the step, as the public code does.
    ``ratio``: over the logprobs recorded when they were sampled."""
    capacity: Epochs = 8
    """Successes kept per task, first in first out."""
    replay_below_std: Amount = 0.05
    replay_below_mean: Level = 0.2
    success_above: Level = 0.1
    """Task reward that a kept success exceeds."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.3
    dual_clip: DualClip | None = 3.0
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Agentic Replay Policy Optimization (GUI agents)",
        source="Lu et al., 2025 (arXiv 2505.16282); rule, gate and clip as in the authors' repository",
        feedback=(Feedback.OUTCOME,),
        data=Source.REPLAY,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="fresh rollouts, and successes of any age: exempt from update.max_age; each in `epochs` steps a use",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high], dual clip; of replayed tokens as `correction` says",
        denominator="trained tokens",
        on_policy=False,
        online=True,
        family="policy-based",
        neighbour="grpo: the same credit; they differ in the data: an earlier success stands in a failed group",
        notes=(
            "the public code recomputes the old logprobs of the replayed sample: its ratio is 1, and nothing corrects "
            "for age; `correction` = `ratio` is ours",
            "the gate looks at the returns the credit is made of; what is kept, at the task reward alone",
            "one malformed action in a failed group lifts the deviation over the gate and blocks the replay, as there",
            "a record enters a step at most once, so two groups at one task draw different ones: ours",
            "reward mix (0.5 times a format term) belongs to the environment, not to the method",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return of whoever stands in the group; None when all returns are equal."""
        return relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios."""
        ratio = ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        return PolicyObjective(surrogate=ratio)

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups, and a buffer of successes."""
        return Plan(
            needs_group=True,
            epochs=self.epochs,
            data=SuccessReplay(
                capacity=self.capacity,
                max_std=self.replay_below_std,
                max_mean=self.replay_below_mean,
                above=self.success_above,
                ratio="one" if self.correction == "none" else "recorded",
            ),
        )
