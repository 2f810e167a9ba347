"""REINFORCE: the likelihood-ratio gradient with the return that followed each turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kifu.algorithms.composition import (
    Card,
    Feedback,
    Plan,
    ReductionName,
    Source,
    TurnCredit,
    outcome_returns,
    reduction_of,
    returns_to_go,
)
from kifu.credit import is_degenerate, leave_one_out
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PolicyObjective, Reduction, ScoreFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """Unbiased on fresh rollouts."""

    baseline: Literal["none", "others"] = "none"
    """``others``: minus the mean return of the other members, which keeps the gradient unbiased."""
    average: ReductionName = "sum"

    card: ClassVar[Card] = Card(
        name="REINFORCE",
        source="Williams, 1992; reward to go as in Sutton et al., 2000",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout once",
        ratio="none; the realised ratio is measured before the update",
        denominator="trajectories",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="actor_critic: the same gradient with a learned value subtracted",
        notes=(
            "without a baseline nothing is compared: equal rewards other than 0 teach; where nothing is earned no "
            "step is taken",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """G_k of every turn, minus a baseline that does not depend on the member itself."""
        returns = [returns_to_go(episode, rules) for episode in group]
        if self.baseline == "none":
            return [TurnCredit(advantages_K=values_K) for values_K in returns]
        outcomes = outcome_returns(group, rules)
        if is_degenerate(outcomes):
            return None
        relative = leave_one_out(outcomes)
        shifts = [outcome - float(advantage or 0.0) for outcome, advantage in zip(outcomes, relative, strict=True)]
        return [TurnCredit(advantages_K=values_K - shift) for values_K, shift in zip(returns, shifts, strict=True)]

    def objective(self) -> Objective:
        """- A log pi."""
        return PolicyObjective(surrogate=ScoreFunction())

    @property
    def reduction(self) -> Reduction:
        """Sum over a trajectory, mean over trajectories, unless ``average`` says otherwise."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts, once."""
        return Plan(needs_group=self.baseline == "others")
