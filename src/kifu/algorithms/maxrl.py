"""Maximum-likelihood reinforcement learning."""

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
from kifu.credit.group import is_degenerate
from kifu.credit.outcome import maximum_likelihood
from kifu.credit.reading import RewardRules
from kifu.errors import ArgumentError
from kifu.objectives import Objective, PolicyObjective, Reduction, ScoreFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRl:
    """The centred reward in units of the group's success rate: rare successes pull harder."""

    average: ReductionName = "sum"

    card: ClassVar[Card] = Card(
        name="Maximum-likelihood reinforcement learning (MaxRL)",
        source="Tajwar et al., 2026, arXiv 2602.02710; the formula as in prime-rl",
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
        neighbour="rloo: climbs the success rate p, this log p truncated after n - 1 terms",
        notes=(
            "returns must be >= 0; groups without any success, or of equal returns, are left out",
            "re-implementations add an eps of 1e-6 or 1e-4 to the mean, or clip ratios; neither is here",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """(R - mean) / mean, the same for every turn; None when all returns are equal.

        Raises:
            ArgumentError: a return is negative.
        """
        returns = outcome_returns(group, rules)
        for episode, value in zip(group, returns, strict=True):
            if value < 0.0:
                raise ArgumentError(
                    f"{episode.place()}, `reward`: a return of {value}; `maxrl` needs returns >= 0, "
                    "a negative one has no likelihood"
                )
        advantages = None if is_degenerate(returns) else maximum_likelihood(returns)
        return None if advantages is None else spread(group, advantages)

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
