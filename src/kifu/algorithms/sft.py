"""Supervised fine-tuning on demonstrations: behaviour cloning by likelihood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms.composition import Card, Feedback, Plan, ReductionName, Source, TurnCredit, reduction_of
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import LikelihoodObjective, Objective, Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Every demonstrated token is imitated, whatever its trajectory earned."""

    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Supervised fine-tuning (behaviour cloning)",
        source="Pomerleau, 1991; for instructions, Ouyang et al., 2022, section 3.5",
        feedback=(Feedback.DEMONSTRATION,),
        data=Source.FIXED,
        decision_unit="token",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="no age: demonstrations are not the policy's own; each trace once",
        ratio="none",
        denominator="demonstrated tokens",
        on_policy=False,
        online=False,
        family="imitation",
        delayed_consequences=False,
        neighbour="reinforce: the same gradient with every advantage 1, on somebody else's tokens",
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Advantage 1 for every turn; rewards are not looked at."""
        return [TurnCredit(advantages_K=np.ones(episode.rewards_K.size)) for episode in group]

    def objective(self) -> Objective:
        """Negative log-likelihood."""
        return LikelihoodObjective()

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Demonstrations, once."""
        return Plan(demonstrations=True)
