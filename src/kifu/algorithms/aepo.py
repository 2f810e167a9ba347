"""Agentic entropy-balanced policy optimization."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
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
    scale_of,
    token_credit,
)
from kifu.credit.branching import DampedDraw, EntropyBranching, FixedStart, PreMonitored, Side
from kifu.credit.entropy import entropy_scaled
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PolicyObjective, PreservingClip, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Aepo:
    """Entropy decides how many rollouts are whole, where the others branch and how much a token counts."""

    initial_rollouts: Count | None = None
    """Whole rollouts of a group; None takes them from the entropies of its first one."""
    budget_slope: Amount = 0.5
    """Of the sigmoid over the first turn's entropy less the mean of the later ones."""
    beam_size: Count = 2
    branch_threshold: Share = 0.5
    entropy_weight: Amount = 0.2
    branch_penalty: Amount = 0.05
    """Taken off the draw for every round in a row in which the group grew."""
    head_tokens: Count = 20
    entropy_side: Side = "after_result"
    advantage_weight: Amount = 0.2
    """Of a token's standardized entropy in its advantage."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    dual_clip: DualClip | None = 3.0
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Agentic entropy-balanced policy optimization",
        source="Dong et al., 2025, arXiv 2510.14545; its code as redistributed in zzfoutofspace/ATPO",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="token: the trajectory's advantage, scaled by the token's entropy",
        turn="assistant message; the points where rollouts can branch lie after the tool results before it",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps; a shared turn is trained once a leaf",
        ratio="token; above 1 + clip_high the value is held and the gradient kept, below 1 - clip_low none; at most "
        "dual_clip where the advantage is negative; nothing bounds a gaining token",
        denominator="trained tokens, a shared one once for every leaf that holds it",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="agentic_reinforced_po: a fixed number of whole rollouts, one advantage a trajectory, a plain clip",
        notes=(
            "paper and script disagree: the script leaves the number of whole rollouts fixed (8 of 16); the default is "
            "the paper's",
            "the code asks a greedy rollout beforehand; here it is the group's first one, which stays a member",
            "the code standardizes entropies over a micro-batch of the learner, so its size changes the result; here "
            "over the group's trained tokens, as recorded when they were sampled",
            "the code was read in a third party's copy, the paper's formula in others' accounts of it",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_i (1 + w (H_t - mean H) / std H) for every token; None when all returns are equal."""
        returns = outcome_returns(group, rules)
        if is_degenerate(returns):
            return None
        advantages = [float(a or 0.0) for a in group_relative(returns, scale=scale_of(self.std, eps=self.eps))]
        entropies = [[np.asarray(turn.entropies_N) for turn in episode.facts("entropies_N")] for episode in group]
        scaled = entropy_scaled(advantages, entropies, weight=self.advantage_weight)
        return [token_credit(advantages_KN) for advantages_KN in scaled]

    def objective(self) -> Objective:
        """The clip that keeps the gradient of gaining tokens, on token ratios."""
        level = TokenRatio()
        return PolicyObjective(
            surrogate=PreservingClip(level=level, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Whole rollouts as many as the first one's entropies say, then branches by a damped draw."""
        count = self.initial_rollouts
        rollout = EntropyBranching(
            start=PreMonitored(slope=self.budget_slope) if count is None else FixedStart(count=count),
            beam=self.beam_size,
            weight=self.entropy_weight,
            draw=DampedDraw(threshold=self.branch_threshold, penalty=self.branch_penalty),
            head=self.head_tokens,
            side=self.entropy_side,
        )
        return Plan(needs_group=True, epochs=self.epochs, rollout=rollout, token_entropies=True)
