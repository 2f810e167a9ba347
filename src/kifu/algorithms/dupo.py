"""Duplicating sampling policy optimization."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
    reduction_of,
    relative_credit,
    scale_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.credit.selection import DuplicateInformative
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class Dupo:
    """The places of groups without signal are filled with copies of others of the same step."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.28
    std: StdName = "population"
    eps: Amount = 0.0
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Duplicating sampling policy optimization (DUPO)",
        source="Li et al., 2025 (WebSailor), arXiv 2507.02592, section on DUPO",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message with its tool call",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps, copies in the same step",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens, copies counted as often as they stand",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="dapo: leaves the places empty or samples new groups for them",
        notes=(
            "not published: the bounds (0.2 and 0.28 are ours, after DAPO) and which standard deviation (population "
            "here, eps 0)",
            "a copied group pulls twice in one step; plan and ledger count the uses",
            "a step without an informative group trains nothing",
            "the paper drops tasks that the start policy solves 8 times of 8 before training; choose tasks for that",
            "the paper's reward is 0.1 format + 0.9 answer (`kifu.credit.outcome.format_and_answer`)",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return, the same for every turn; None when all returns are equal."""
        return relative_credit(group, rules, scale=scale_of(self.std, eps=self.eps))

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios with separate bounds."""
        return PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups, informative ones copied into free places."""
        return Plan(needs_group=True, epochs=self.epochs, selection=DuplicateInformative())
