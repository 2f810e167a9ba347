"""Every call of the model is a training row; a rollout weighs the same however many rows it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kifu.algorithms.composition import (
    Amount,
    Card,
    DualClip,
    Epochs,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    outcome_returns,
    reduction_of,
    relative_credit,
    scale_of,
    spread,
)
from kifu.credit.episode import Episode
from kifu.credit.group import is_degenerate
from kifu.credit.outcome import relative_by_calls
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """The final reward stands on every call of the rollout."""

    statistics: Literal["rollout", "call"] = "rollout"
    """What a group's mean and deviation run over; with ``call`` a rollout of many calls counts as often."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    dual: DualClip | None = 3.0
    """Largest ratio that counts where the advantage is negative."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "trajectory"
    """``trajectory`` is the source's mean per rollout, ``turn`` weighs every call the same."""

    card: ClassVar[Card] = Card(
        name="Transitions with a mean per rollout (Agent Lightning)",
        source="Luo et al., 2025, arXiv 2508.03680; microsoft/agent-lightning, per_rollout_loss.py and "
        "rollout_level_advantage.py",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory, its reward copied to every call",
        turn="call of the model: one prompt and what was sampled after it",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high], at most `dual` for losses; not a bound, the realised "
        "ratio and KL are measured",
        denominator="tokens of each rollout, then rollouts",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: no dual bound, and no statistics over calls",
        notes=(
            "calls whose prompt continues the one before share one tape here, others get a tape of their own; weights "
            "and advantages are the same either way",
            "statistics over rollouts are those of the released code; its earlier trainer ran GRPO over rows, which is "
            "`call`",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return on every call; None when all returns are equal."""
        scale = scale_of(self.std, eps=self.eps)
        if self.statistics == "rollout":
            return relative_credit(group, rules, scale=scale)
        returns = outcome_returns(group, rules)
        if is_degenerate(returns):
            return None
        calls = [episode.num_turns for episode in group]
        return spread(group, relative_by_calls(returns, calls_G=calls, scale=scale))

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios with a dual bound."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high, dual=self.dual)
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(needs_group=True, epochs=self.epochs)
