"""GRPO without the two divisors that bias it: no spread, no lengths."""

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
    Share,
    Source,
    TurnCredit,
    relative_credit,
)
from kifu.credit.episode import Episode
from kifu.credit.group import Unscaled
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, ConstantNormalizer, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo:
    """The centred reward, and a constant in place of the length."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    constant: Positive = 3000.0
    """What the token losses of a trajectory are divided by: the token limit of a trajectory, as the source has it."""
    epochs: Epochs = 1

    card: ClassVar[Card] = Card(
        name="GRPO done right (Dr. GRPO)",
        source="Liu et al., 2025, arXiv 2503.20783, section 3.2; sail-sg/understand-r1-zero, qwen2.5-math-7b.sh",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trajectories times the constant",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: divides by the group's spread and by each trajectory's length",
        notes=(
            "advantages are (n-1)/n of those of `rloo`",
            "the constant 3000 is the generation limit of the released scripts; set it to your own token limit",
            "groups of equal returns are left out: every advantage in them is 0",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The return minus the group's mean, the same for every turn; None when all returns are equal."""
        return relative_credit(group, rules, scale=Unscaled())

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios."""
        return PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Sum over a trajectory divided by the constant, mean over trajectories."""
        return ConstantNormalizer(tokens=self.constant)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups."""
        return Plan(needs_group=True, epochs=self.epochs)
