"""TRACE, rollout budget: attempts go where they are expected to disagree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

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
from kifu.credit.branching import Allocated
from kifu.credit.budget import allocate_prefixes, allocate_roots
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBudget:
    """Roots whose attempts are likely to disagree, then prefixes whose continuation is likely to end otherwise."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    budget: Count = 512
    """Rollouts of one step, roots and continuations together."""
    root_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of the budget, for roots; the rest continues from visited prefixes. Ours."""
    rollouts: Count = 2
    """Attempts at one chosen root (m)."""
    prior: Positive = 2.0
    """Rollouts that the rate of a family counts for in that of a task, and so on. Ours."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="TRACE: tree rollout allocation for contrastive exploration",
        source="arXiv 2606.11119, abstract and others' accounts of the allocation; the loss is ours",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory; rollouts are allocated to tasks and to turns",
        turn="tree node: thought, call and observation, from which rollouts can go on",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: the same loss, every task gets the same number of rollouts",
        notes=(
            "not published: the tree-aware loss and the predictor's architecture; the loss here is GRPO's over all "
            "rollouts of a task, which counts a shared prefix once for each of them",
            "the predictor of success allocates and is never a baseline; ours is the rate of success in earlier steps, "
            "of the task drawn towards its family and that towards all, and for a turn that of the step's rollouts "
            "which were in its state",
            "published settings of (budget, m): (512, 2), (512, 6), (1024, 2); how the budget is split is ours",
        ),
    )

    def roots(self, success_B: Sequence[float]) -> tuple[int, ...]:
        """``[B]`` rollouts of each candidate task, given its predicted success."""
        return allocate_roots(success_B, budget=self._root_budget, rollouts=self.rollouts)

    def prefixes(self, seen_B: Sequence[float], success_B: Sequence[float]) -> tuple[int, ...]:
        """``[B]`` continuations from each visited prefix, given the outcome seen and the predicted success."""
        return allocate_prefixes(seen_B, success_B, budget=self.budget - self._root_budget)

    @property
    def _root_budget(self) -> int:
        return max(1, int(self.root_share * self.budget))

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, the same for every turn; None when all returns are equal."""
        advantages = group_relative(outcome_returns(group, rules), scale=scale_of(self.std, eps=self.eps))
        return unless_silent(
            [
                TurnCredit(advantages_K=np.full(episode.num_turns, float(advantage or 0.0)))
                for episode, advantage in zip(group, advantages, strict=True)
            ]
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
        """Fresh rollouts, allocated to tasks and to turns."""
        return Plan(needs_group=True, epochs=self.epochs, rollout=self._rollout)

    @property
    def _rollout(self) -> Allocated:
        return Allocated(budget=self.budget, roots=self._root_budget, attempts=self.rollouts, prior=self.prior)
