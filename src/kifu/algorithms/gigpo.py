"""Group-in-group policy optimization."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
    outcome_returns,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.episode import Episode
from kifu.credit.keyed import episode_relative, merge_similar, relative_by_key
from kifu.credit.reading import RewardRules
from kifu.credit.returns import discounted_returns
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class GiGpo:
    """A turn gets its episode's relative reward plus its own return relative to other turns taken in the same state."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    step_gamma: Share = 0.95
    """Discount of the step returns that are compared at a state; the episode's reward has the experiment's."""
    weight: Amount = 1.0
    """Of the step advantage."""
    std: StdName = "none"
    """What both centred values are divided by: ``none`` is the mode mean_norm, ``sample`` mean_std_norm."""
    eps: Amount = 1e-6
    cross_steps: bool = True
    """Whether an episode stands in the episode's mean once a turn, so that long ones weigh more, or once."""
    similarity: Share | None = None
    """States at least this similar are one; None asks for equal keys. The code's setting is 0.95."""
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Group-in-group policy optimization",
        source="Feng et al., 2025, arXiv 2505.10978; verl-agent gigpo/core_gigpo.py",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn, compared with the group's other turns in the same state",
        turn="assistant message; its state key is the anchor",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: no step advantage",
        notes=(
            "a state that one turn of the group visited gives no step advantage; an episode group of a single row "
            "keeps its raw score, as in the code",
            "a member that returns to a state is compared with itself too",
            "not here: the scripts' KL to a reference (0.01) and the penalty of 0.1 for invalid actions",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A = A_episode + weight A_step; None when all of it is 0."""
        scale = scale_of(self.std, eps=self.eps)
        lengths = [episode.num_turns for episode in group]
        whole = episode_relative(_scores(group, rules), lengths, scale=scale, cross_steps=self.cross_steps)
        returns = [
            discounted_returns(
                episode.rewards_K,
                gamma=self.step_gamma,
                final_value=episode.boundary,
                durations_K=episode.durations_K,
            )
            for episode in group
        ]
        step = relative_by_key(returns, self._anchors(group), scale=scale)
        return unless_silent(
            [TurnCredit(advantages_K=a_E + self.weight * a_K) for a_E, a_K in zip(whole, step, strict=True)]
        )

    def _anchors(self, group: Sequence[Episode]) -> list[tuple[str, ...]]:
        """``[G][K]`` state of each turn."""
        states = [tuple(str(turn.state) for turn in episode.facts("state")) for episode in group]
        if self.similarity is None:
            return states
        merged = merge_similar([state for states_K in states for state in states_K], threshold=self.similarity)
        stops = list(accumulate(map(len, states), initial=0))
        return [merged[start:stop] for start, stop in pairwise(stops)]

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
            needs_group=True, epochs=self.epochs, signal="returns that differ, of attempts or from one state on"
        )


def _scores(group: Sequence[Episode], rules: RewardRules) -> list[float]:
    return [outcome_returns([episode], rules)[0] if episode.num_turns else 0.0 for episode in group]
