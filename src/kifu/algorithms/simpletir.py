"""SimpleTIR: trajectories with a void turn are not trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

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
    reduction_of,
    relative_credit,
    scale_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.credit.selection import SuccessBand
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleTir:
    """GRPO's credit; one turn without a readable call or an answer takes its whole trajectory out of the loss."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.28
    dual: DualClip | None = 3.0
    """Largest ratio that counts where the advantage is negative."""
    band_low: Share = 0.1
    band_high: Share = 0.9
    """Groups whose mean reward lies outside [band_low, band_high] are left out."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="SimpleTIR",
        source="Xue et al., 2025, arXiv 2509.02479; ltzheng/SimpleTIR, train.sh and mask_void_turns",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message up to a code block or an answer",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high], at most `dual` for losses; not a bound, the realised "
        "ratio and KL are measured",
        denominator="trained tokens of trajectories without a void turn",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="dapo: trains void turns like any other",
        notes=(
            "a turn is void here when it holds neither a call that could be read nor a complete, non-empty answer; in "
            "the source, neither a complete code block nor a boxed answer",
            "the source stops generating at a void turn; here the episode goes on as the agent decides",
            "a masked trajectory stays in its group's mean and deviation, and is in no denominator",
            "the source samples three times the prompts it trains; here a group outside the band is left out",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, masked where a turn is void; None when all returns are equal or all are masked."""
        is_void = [any(turn.is_void for turn in episode.facts("is_void")) for episode in group]
        found = relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))
        if found is None or all(is_void):
            return None
        return [
            replace(credit, kept_K=np.zeros(credit.advantages_K.size, dtype=np.bool_), left_out="a turn of it is void")
            if void
            else credit
            for credit, void in zip(found, is_void, strict=True)
        ]

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios with separate bounds and a dual one."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high, dual=self.dual)
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups whose success is neither rare nor certain."""
        return Plan(
            needs_group=True,
            epochs=self.epochs,
            selection=SuccessBand(low=self.band_low, high=self.band_high),
            signal="returns that differ, and an attempt without a void turn",
            presumed=("is_void",),
        )
