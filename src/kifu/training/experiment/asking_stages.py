"""Stages that ask instead of train: attempts of the present policy are judged and kept for later stages.

A scorer may be fitted to the judgement. Each stage is a value with a card, as a method is. It gives every attempt
credit that keeps no token, so no weight of the policy moves; every attempt is on record and closed in the books as held
back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms import Card, Feedback, Plan, Source, TurnCredit
from kifu.credit import preference_pairs
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import LikelihoodObjective, Objective, Reduction, TokenMean


def _untrained(group: Sequence[Episode]) -> list[TurnCredit]:
    return [
        TurnCredit(advantages_K=np.zeros(one.num_turns), kept_K=np.zeros(one.num_turns, dtype=np.bool_))
        for one in group
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """What stages that train no token share."""

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """No token is trained."""
        return _untrained(group)

    def objective(self) -> Objective:
        """Never evaluated: the stage has no row."""
        return LikelihoodObjective()

    @property
    def reduction(self) -> Reduction:
        """Over nothing."""
        return TokenMean()

    @property
    def plan(self) -> Plan:
        """Fresh rollouts."""
        return Plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(_Asking):
    """Attempts at one task are ranked by the verdict of the world; a reward model is fitted to the pairs."""

    card: ClassVar[Card] = Card(
        name="Reward model (Bradley-Terry)",
        source="Bradley and Terry, 1952; as in Ouyang et al., 2022 (arXiv 2203.02155), eq. 1",
        feedback=(Feedback.OUTCOME, Feedback.PREFERENCE),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="a reward model of its own; the policy stays as it is",
        optimization="weights of the reward model",
        freshness="attempts of the policy the stage begins with, once",
        ratio="none",
        denominator="pairs",
        on_policy=True,
        online=True,
        family="reward model",
        delayed_consequences=False,
        neighbour="labelling: the same attempts; every turn gets a soft label instead of every pair an order",
        notes=(
            "the ranking is the world's verdict and no person's: it can be checked; equal verdicts make no pair",
            "of k ranked attempts the authors take every pair; here the best is paired with the worst, the next best "
            "with the next worst, each attempt in one pair at most: ours",
            "the model is a GRU over the token ids of the attempt, not a copy of the policy with a head: ours",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """No token is trained; None when no two verdicts differ, so that nothing is ranked."""
        return _untrained(group) if preference_pairs([one.outcome for one in group]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting(_Asking):
    """Attempts are made and judged, for stages that learn from records; nothing is fitted."""

    card: ClassVar[Card] = Card(
        name="Collection",
        source="no method: it makes the records that an offline method of a later stage learns from",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory",
        turn="assistant message",
        updates="nothing",
        optimization="nothing",
        freshness="attempts of the policy the stage begins with, once",
        ratio="none",
        denominator="nothing",
        on_policy=True,
        online=True,
        family="collection",
        delayed_consequences=False,
        neighbour="ranking: the same attempts; a reward model is fitted to their order",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling(_Asking):
    """Every turn is labelled by how its attempt ended; a process reward model is fitted to the labels."""

    card: ClassVar[Card] = Card(
        name="Process reward model",
        source="AgentPRM, Choudhury, 2025 (arXiv 2502.10325): soft labels and binary cross-entropy",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message",
        updates="a process reward model of its own; the policy stays as it is",
        optimization="weights of the process reward model",
        freshness="attempts of the policy the stage begins with, once",
        ratio="none",
        denominator="labelled turns",
        on_policy=True,
        online=True,
        family="process reward model",
        neighbour="ranking: the same attempts; an order of whole attempts instead of a label for every turn",
        notes=(
            "label of turn k: (gamma^(K-1-k) (2 score - 1) + 1) / 2, the verdict in [0, 1] as score; the authors' code "
            "counts the exponent from the start instead, which `direction` selects",
            "labels are averaged over turns with the same state and action where the environment gives state keys",
            "the model is a GRU over the token ids up to the end of the turn, not a language model: ours",
        ),
    )
