"""MT-GRPO: the first tool turn gets an advantage of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
    TurnRewards,
    reduction_of,
    scale_of,
    unless_silent,
)
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative
from kifu.credit.local import component_reward
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class MtGrpo:
    """Tokens up to the first tool result get the outcome's and the turn's relative reward, later ones the outcome's."""

    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    coefficient: Amount = 1.0
    """Of the turn advantage."""
    component: str | None = None
    """Reward component of the first tool turn that is its turn reward; None adds all components paid in that turn."""
    std: StdName = "sample"
    eps: Amount = 1e-4
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Multi-turn GRPO",
        source="arXiv 2505.11821; Multi-Turn-RL-Agent, verifiers/trainers/mt_grpo_env_trainer.py, estimator `aae`",
        feedback=(Feedback.OUTCOME, Feedback.RULE),
        data=Source.FRESH,
        decision_unit="the first tool turn, and the trajectory",
        turn="assistant message; what stands before the first tool result is the turn that is credited",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: no turn reward",
        notes=(
            "the turn reward is what `component` was paid in the first tool turn, unweighted; not paid is 0, and so is "
            "a rollout without a tool turn, whose tokens all get the advantage of turn reward plus outcome",
            "the outcome is the verdict's reward alone; a member without a verdict takes no part",
            "only the first tool turn gets turn credit, however many there are",
            "not here: the code's other estimator (`cae`), and its KL to a reference",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Three advantages over the group, spread by where the first tool result stands; None when all of it is 0."""
        first = [_first_tool_turn(episode) for episode in group]
        turn_G = [self._turn_reward(episode, at) for episode, at in zip(group, first, strict=True)]
        outcome_G = [episode.outcome for episode in group]
        scale = scale_of(self.std, eps=self.eps)
        a_turn = group_relative([_if_judged(t, o) for t, o in zip(turn_G, outcome_G, strict=True)], scale=scale)
        a_outcome = group_relative(outcome_G, scale=scale)
        a_both = group_relative([_if_judged(t, o, o) for t, o in zip(turn_G, outcome_G, strict=True)], scale=scale)
        found: list[TurnCredit] = []
        for i, (episode, at) in enumerate(zip(group, first, strict=True)):
            count = episode.num_turns
            turn, outcome, both = a_turn[i], a_outcome[i], a_both[i]
            if turn is None or outcome is None or both is None:
                nothing_K = np.zeros(count)
                found.append(TurnCredit(advantages_K=nothing_K, kept_K=nothing_K > 0, left_out="nobody judged it"))
            elif at is None:
                found.append(TurnCredit(advantages_K=np.full(count, both)))
            else:
                advantages_K = np.full(count, outcome)
                advantages_K[: at + 1] += self.coefficient * turn
                found.append(TurnCredit(advantages_K=advantages_K))
        return unless_silent(found)

    def _turn_reward(self, episode: Episode, at: int | None) -> float:
        return 0.0 if at is None else component_reward(episode.turns[at], self.component)

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
            turn_rewards=TurnRewards(component=self.component),
            signal="outcomes or rewards of the first tool turn that differ",
            presumed=("calls_tool",),
        )


def _first_tool_turn(episode: Episode) -> int | None:
    return next((at for at, turn in enumerate(episode.facts("calls_tool")) if turn.calls_tool), None)


def _if_judged(turn: float, outcome: float | None, added: float | None = 0.0) -> float | None:
    """The turn reward plus ``added``, or None for a member that nobody judged."""
    return None if outcome is None or added is None else turn + added
