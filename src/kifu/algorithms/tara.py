"""TARA: turn-aware relative advantage of ToolVerse."""

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
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    TurnRewards,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.episode import Episode
from kifu.credit.keyed import relative_by_key
from kifu.credit.local import component_reward, gated_future
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Tara:
    """A turn's own check, and what right turns lead to, both relative to the group at the same turn index."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    component: str | None = None
    """Reward component that is the turn's check, 1 when its calls cover the golden ones; None adds all of them."""
    gamma: Share = 0.5
    """Discount of one turn in the future part."""
    weight: Amount = 0.5
    """Of the future part."""
    gated: bool = True
    """Whether a turn's future counts only where the turn itself was right."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "trajectory"

    card: ClassVar[Card] = Card(
        name="Turn-aware relative advantage (TARA, ToolVerse)",
        source="arXiv 2607.15660, from others' accounts; no code was found",
        feedback=(Feedback.RULE,),
        data=Source.FRESH,
        decision_unit="turn, compared at equal turn index",
        turn="assistant message; the index must mean the same in every member",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="tokens of each trajectory, then trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="mt_grpo: one turn reward, of the first tool turn, added to the outcome's",
        notes=(
            "the verdict's reward takes no part; every signal is the check of single turns, which needs one golden "
            "set of calls a turn and penalizes other right ones",
            "not published: the deviation's type (ours: sample), eps, the average, and groups of unequal length (ours: "
            "each turn index over the members that reached it, 0 beyond a member's end)",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_local + weight A_future; None when all of it is 0."""
        rewards = [
            np.array([component_reward(turn, self.component) for turn in episode.facts("rewards")], dtype=np.float64)
            for episode in group
        ]
        futures = [gated_future(r_K, gamma=self.gamma, gated=self.gated) for r_K in rewards]
        turns = [range(r_K.size) for r_K in rewards]
        scale = scale_of(self.std, eps=self.eps)
        local, future = relative_by_key(rewards, turns, scale=scale), relative_by_key(futures, turns, scale=scale)
        return unless_silent(
            [TurnCredit(advantages_K=a_K + self.weight * f_K) for a_K, f_K in zip(local, future, strict=True)]
        )

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
            turn_rewards=TurnRewards(component=self.component),
            signal="checks of turns that differ at one turn index",
        )
