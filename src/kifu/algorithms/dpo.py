"""Direct preference optimization on pairs of stored attempts."""

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
    Positive,
    Source,
    TurnCredit,
)
from kifu.credit import StoredPairs, preference_pairs
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PairMean, PreferenceObjective, Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpo:
    """Of two attempts at one task, the better one is made likelier relative to the other, and to a frozen reference."""

    beta: Positive = 0.1
    margin: Amount = 0.0
    """How much the rewards of a pair differ at least; equal ones are never a pair."""
    likelihood: Amount = 0.0
    """Factor of an added likelihood of the preferred side, mean over its tokens."""
    epochs: Epochs = 1

    card: ClassVar[Card] = Card(
        name="Direct preference optimization",
        source="Rafailov et al., 2023 (arXiv 2305.18290), eq. 7; beta as there",
        feedback=(Feedback.PREFERENCE,),
        data=Source.FIXED,
        decision_unit="trajectory",
        turn="assistant message",
        updates="policy",
        optimization="weights",
        freshness="records of finished runs, of any age; each pair once a pass",
        ratio="none to the behaviour; log-probabilities of whole attempts relative to the frozen reference",
        denominator="pairs",
        on_policy=False,
        online=False,
        family="policy-based",
        delayed_consequences=False,
        neighbour="offline_awr: the same records; preferences between two attempts instead of their rewards",
        notes=(
            "offline preference optimization, not offline RL: of the rewards only the order inside a pair is used",
            "pairs are made of attempts at one task, best with worst, each attempt in one pair at most: ours",
            "the reference is the policy this stage begins with: the weights of a warm start, or those loaded",
            "only tokens of the policy count, observations on either side do not",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """1 for the preferred attempt of a pair, -1 for the other, none for the rest; None without a pair."""
        rewards, names = [one.outcome for one in group], [one.id for one in group]
        sides = {
            member: (pair, sign)
            for pair, both in enumerate(preference_pairs(rewards, names_G=names, margin=self.margin))
            for member, sign in zip(both, (1.0, -1.0), strict=True)
        }
        if not sides:
            return None
        found = []
        for at, episode in enumerate(group):
            pair, sign = sides.get(at, (None, 0.0))
            kept_K = np.full(episode.num_turns, pair is not None)
            left_out = "it stands in no preference pair" if pair is None else None
            advantages_K = np.full(episode.num_turns, sign)
            found.append(TurnCredit(advantages_K=advantages_K, kept_K=kept_K, pair=pair, left_out=left_out))
        return found

    def objective(self) -> Objective:
        """- log sigma(beta (margin of the policy - margin of the reference))."""
        return PreferenceObjective(beta=self.beta, likelihood=self.likelihood)

    @property
    def reduction(self) -> Reduction:
        """Mean over pairs of sums over tokens."""
        return PairMean()

    @property
    def plan(self) -> Plan:
        """Records of finished runs, in pairs, and a reference."""
        return Plan(
            data=StoredPairs(),
            epochs=self.epochs,
            needs_group=True,
            needs_reference=True,
            signal="two attempts whose rewards differ by more than `margin`",
        )
