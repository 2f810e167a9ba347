"""GraphHCA: a turn is worth how much it raised the chance of success on the group's state graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kifu.algorithms.composition import (
    Amount,
    Card,
    Epochs,
    Feedback,
    Plan,
    PositiveShare,
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
from kifu.credit.episode import Episode
from kifu.credit.graph import log_progress, state_graph
from kifu.credit.group import group_relative
from kifu.credit.keyed import relative_by_key
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio

Positive = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphHca:
    """GRPO's advantage, plus the turn's log progress relative to other turns from the same state."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    graph_gamma: PositiveShare = 0.95
    """Discount of one transition on the graph."""
    floor: PositiveShare = 0.01
    """Smallest chance of success that the logarithm sees."""
    weight: Amount = 1.0
    """Of the graph's advantage."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="GraphHCA: hindsight credit on a state graph",
        source="arXiv 2609.35084, from two accounts that agree; no code was found",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn, compared with the group's other turns from the same state",
        turn="assistant message; an edge of the graph of state keys",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="graphgpo: distance to success instead of the chance of it",
        notes=(
            "assumes that equal keys are equal states and that an action's effect is certain",
            "the chances solve a linear system exactly; the paper iterates its contraction",
            "the deviation's type is as printed numbers have it (sample); clip and average are ours",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_GRPO + weight A_graph; None when all of it is 0."""
        scale = scale_of(self.std, eps=self.eps)
        graph = state_graph(group)
        progress = log_progress(graph, gamma=self.graph_gamma, eps=self.floor)
        local = relative_by_key(progress, graph.sources_GK, scale=scale)
        returns = [outcome_returns([episode], rules)[0] if episode.num_turns else 0.0 for episode in group]
        whole = group_relative(returns, scale=scale)
        return unless_silent(
            [
                TurnCredit(advantages_K=float(a_E or 0.0) + self.weight * a_K)
                for a_E, a_K in zip(whole, local, strict=True)
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
        """Fresh rollouts in groups."""
        return Plan(
            needs_group=True,
            epochs=self.epochs,
            signal="returns that differ, or acts in one state that lead differently close to success",
        )
