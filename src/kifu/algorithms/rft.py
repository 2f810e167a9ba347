"""Rejection-sampling fine-tuning: imitation of the policy's own successes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms.composition import (
    Card,
    CountFromZero,
    Epochs,
    Feedback,
    Level,
    Plan,
    ReductionName,
    Source,
    TurnCredit,
    reduction_of,
)
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import LikelihoodObjective, Objective, Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Rft:
    """Attempts that do not pass are rejected; the likelihood of the others is raised, each as much."""

    min_reward: Level = 1.0
    """Task reward that passes."""
    max_tokens: Epochs | None = None
    """Trained tokens an attempt may have; WebSailor's cold start keeps at most 32 thousand."""
    min_calls: CountFromZero = 0
    """Turns with a tool call an attempt needs; WebSailor's cold start wants more than 5."""
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Rejection-sampling fine-tuning",
        source="Yuan et al., 2023 (arXiv 2308.01825); filters of the WebSailor cold start, Li et al., 2025",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="age 0, each success in `epochs` optimizer steps",
        ratio="none; a sampled token enters by its likelihood",
        denominator="tokens of the successes",
        on_policy=True,
        online=True,
        family="imitation",
        neighbour="reinforce: for rewards 0 and 1 the same direction, divided by what was tried instead of what passed",
        notes=(
            "failures teach nothing and are closed as held_back",
            "the published method fine-tunes the base model anew on samples of all rounds, without repeated solutions; "
            "here each step continues from the last, on its own samples, repeated ones included: ours",
            "nobody is compared: attempts that all pass are all imitated; where nobody passes no step is taken",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Advantage 1 for every turn of an attempt that passes, none for the others; None when nobody passes."""
        failings = [self._failing(episode) for episode in group]
        if None not in failings:
            return None
        return [
            TurnCredit(
                advantages_K=np.full(episode.num_turns, float(failing is None)),
                kept_K=np.full(episode.num_turns, failing is None),
                left_out=failing,
            )
            for episode, failing in zip(group, failings, strict=True)
        ]

    def _failing(self, episode: Episode) -> str | None:
        """Why the attempt is not imitated."""
        if episode.outcome is None or episode.outcome < self.min_reward:
            return f"it earned {episode.outcome}, less than min_reward {self.min_reward:g}"
        if self.max_tokens is not None and sum(episode.lengths_K) > self.max_tokens:
            return f"it is {sum(episode.lengths_K)} tokens long, more than max_tokens {self.max_tokens}"
        calls = sum(turn.calls_tool for turn in episode.facts("calls_tool")) if self.min_calls else 0
        return f"it called {calls} tools, fewer than min_calls {self.min_calls}" if calls < self.min_calls else None

    def objective(self) -> Objective:
        """Negative log-likelihood."""
        return LikelihoodObjective()

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``, of what passed."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts."""
        return Plan(
            epochs=self.epochs,
            signal="an attempt that passes: min_reward, max_tokens and min_calls",
            presumed=("calls_tool",) if self.min_calls else (),
        )
