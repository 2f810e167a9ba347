"""REINFORCE leave-one-out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Card,
    Feedback,
    Plan,
    ReductionName,
    Source,
    TurnCredit,
    outcome_returns,
    reduction_of,
    spread,
)
from kifu.credit.episode import Episode
from kifu.credit.group import is_degenerate, leave_one_out
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PolicyObjective, Reduction, ScoreFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo:
    """The whole trajectory is one action; its baseline is the mean return of the other members."""

    average: ReductionName = "sum"

    card: ClassVar[Card] = Card(
        name="REINFORCE leave-one-out (RLOO)",
        source="Ahmadian et al., 2024, arXiv 2402.14740, section 3",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout once",
        ratio="none; the realised ratio is measured before the update",
        denominator="trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="reinforce: with its baseline of the others each turn has the return that followed it, not the whole",
        notes=(
            "the paper puts the KL to a reference into the reward; not here",
            "groups of equal returns are left out: every advantage in them is 0",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The return minus the mean of the others', the same for every turn; None when all returns are equal."""
        returns = outcome_returns(group, rules)
        return None if is_degenerate(returns) else spread(group, leave_one_out(returns))

    def objective(self) -> Objective:
        """- A log pi."""
        return PolicyObjective(surrogate=ScoreFunction())

    @property
    def reduction(self) -> Reduction:
        """Sum over a trajectory, mean over trajectories, unless ``average`` says otherwise."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts in groups, once."""
        return Plan(needs_group=True)
