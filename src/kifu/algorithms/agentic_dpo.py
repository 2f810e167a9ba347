"""Agentic-DPO: preferences between an expert's action and a wrong tool the policy called in the same state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from kifu.algorithms.composition import Amount, Card, Epochs, Feedback, Plan, Source, TurnCredit
from kifu.credit import StoredPairs, hardest_wrong_turn
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PairMean, PreferenceObjective, Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticDpo:
    """One action at one expert state; no reference, and a likelihood of the expert's action as anchor."""

    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.008
    length_power: Amount = 0.5
    """beta is divided by the longer side's tokens to this power."""
    preference: Amount = 1.0
    """Factor of the preference; 0 is the warm-up round."""
    likelihood: Amount = 0.5
    """Factor of the expert's likelihood. Without it the authors lose 18 points."""
    min_reward: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Task reward that makes an attempt an expert."""
    epochs: Epochs = 1

    card: ClassVar[Card] = Card(
        name="Agentic-DPO",
        source="Chen and Yuille, 2026 (arXiv 2607.10601); constants and loss as in the authors' repository",
        feedback=(Feedback.PREFERENCE, Feedback.DEMONSTRATION),
        data=Source.FIXED,
        decision_unit="one action at one expert state",
        turn="assistant message with one tool call",
        updates="policy",
        optimization="weights",
        freshness="records of finished runs, of any age; each group once a pass",
        ratio="none; log-probabilities of one action, without a reference",
        denominator="pairs",
        on_policy=False,
        online=False,
        family="policy-based",
        delayed_consequences=False,
        neighbour="dpo: whole attempts and a frozen reference instead of one action, a length rule and a likelihood",
        notes=(
            "the expert is the first attempt of the group that succeeds, negatives are recorded attempts that left it "
            "with another tool: ours; the authors sample 4 actions of the present student at every expert state",
            "the hardest negative is kept, the one of highest recorded log-probability; without one the likelihood "
            "alone is left",
            "one state a group: the one where the hardest negative left the expert",
            "the authors' likelihood term also covers state tokens; here the expert's own tokens alone",
            "the same tool with other arguments is never a negative, as there",
            "rounds: a warm-up with preference = 0, then 1; negatives are as fresh as the records",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """1 for the expert's action, -1 for the wrong one in its state, none elsewhere; None without an expert."""
        experts = [at for at, one in enumerate(group) if one.outcome is not None and one.outcome >= self.min_reward]
        if not experts:
            return None
        expert = min(experts, key=lambda at: group[at].id)
        wrong = hardest_wrong_turn(group, expert=expert)
        found = []
        for at, episode in enumerate(group):
            kept_K = np.zeros(episode.num_turns, dtype=np.bool_)
            if at == expert:
                kept_K[wrong.turn if wrong is not None else slice(None)] = True
            elif wrong is not None and at == wrong.member:
                kept_K[wrong.turn] = True
            sign = 1.0 if at == expert else -1.0
            pair = 0 if bool(kept_K.any()) else None
            found.append(TurnCredit(advantages_K=np.where(kept_K, sign, 0.0), kept_K=kept_K, pair=pair))
        return found

    def objective(self) -> Objective:
        """0.5 likelihood of the expert's action plus the preference, beta shrinking with length."""
        return PreferenceObjective(
            beta=self.beta,
            reference=False,
            length_power=self.length_power,
            preference=self.preference,
            likelihood=self.likelihood,
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over pairs."""
        return PairMean()

    @property
    def plan(self) -> Plan:
        """Records of finished runs, in pairs."""
        return Plan(data=StoredPairs(), epochs=self.epochs, needs_group=True)
