"""GraphGPO: a turn is worth how close to success the group's state graph says it led."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

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
    outcome_returns,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.episode import Episode
from kifu.credit.graph import distance_returns, state_graph
from kifu.credit.keyed import episode_relative, relative_by_key
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphGpo:
    """The episode's relative reward, plus the turn's distance return relative to other turns from the same state."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    reward: Amount = 10.0
    """Of a turn that leads to success at once."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor of one transition more to success."""
    convention: Literal["recipe", "paper"] = "recipe"
    """``recipe``: the distance from where the turn led; ``paper`` (eq. 4): one more, the turn itself."""
    weight: Amount = 1.0
    """Of the graph's advantage."""
    cross_steps: bool = False
    """Whether an episode stands in the episode's statistics once a turn, as in the frozen recipe, or once."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="GraphGPO: group policy optimization on a state graph",
        source="arXiv 2605.26684, eq. 4, and the authors' recipe, both from a reproduction that tells them apart",
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
        neighbour="graphhca: chance of success under the group's own choices instead of distance to it",
        notes=(
            "two ways of the same length are equal to it, however risky one of them is",
            "the deviation hides the convention: it changes all returns by one factor, so only eps notices",
            "the last turn of a failed member leads to failure here, to the state it ended in there",
            "without a success in the group only the episode's part is left; a state left once gets no graph advantage",
            "clip and average are ours",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_episode + weight A_graph; None when all of it is 0."""
        scale = scale_of(self.std, eps=self.eps)
        graph = state_graph(group)
        raw = distance_returns(graph, reward=self.reward, decay=self.decay, edge_cost=int(self.convention == "paper"))
        local = relative_by_key(raw, graph.sources_GK, scale=scale)
        scores = [outcome_returns([episode], rules)[0] if episode.num_turns else 0.0 for episode in group]
        lengths = [episode.num_turns for episode in group]
        whole = episode_relative(scores, lengths, scale=scale, cross_steps=self.cross_steps)
        return unless_silent(
            [TurnCredit(advantages_K=a_E + self.weight * a_K) for a_E, a_K in zip(whole, local, strict=True)]
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
