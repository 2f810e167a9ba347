"""Agentic-DPO: preferences between an expert's action and a wrong tool the policy calls in the same state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
    CountFromZero,
    Epochs,
    Feedback,
    Level,
    Plan,
    Positive,
    Source,
    TurnCredit,
)
from kifu.credit import RefreshedPairs, StoredPairs, hardest_sampled_turn, hardest_wrong_turn
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, PairMean, PreferenceObjective, Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticDpo:
    """One action at one expert state; no reference, and a likelihood of the expert's action as anchor."""

    beta: Positive = 0.008
    length_power: Amount = 0.5
    """beta is divided by the longer side's tokens to this power."""
    preference: Amount = 1.0
    """Factor of the preference; 0 is the warm-up round."""
    likelihood: Amount = 0.5
    """Factor of the expert's likelihood. Without it the authors lose 18 points."""
    min_reward: Level = 1.0
    """Task reward that makes an attempt an expert."""
    negatives: Literal["sampled", "recorded"] = "sampled"
    """``sampled``: actions of the present policy in the expert's states. ``recorded``: what other attempts of the
    stored group did there; then nothing is sampled, and the options from here to ``round_steps`` play no part."""
    samples: Count = 4
    """Actions sampled in a state of the expert."""
    temperature: Positive = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_tokens: Count = 256
    """Of a sampled action."""
    warm_up: CountFromZero = 75
    """Steps of imitation alone, before anything is sampled. Without any the authors get 0.0."""
    round_steps: Count = 75
    """Steps after which the actions sampled in a state are replaced by new ones."""
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
        freshness="experts of any age, each group once a pass; sampled actions serve at most round_steps steps",
        ratio="none; log-probabilities of one action at temperature 1, without a reference",
        denominator="pairs",
        on_policy=False,
        online=False,
        family="policy-based",
        delayed_consequences=False,
        neighbour="dpo: whole attempts and a frozen reference instead of one action, a length rule and a likelihood",
        notes=(
            "the hardest of the sampled actions with another tool is kept, the one of highest recorded "
            "log-probability; without one the likelihood alone is left",
            "the same tool with other arguments is never a negative, as there; an action without a call names no tool",
            "warm-up and rounds as published, 75 steps each; actions are sampled when a round first comes to a state, "
            "where the authors sample in all states at its start: ours, and fresher",
            "one state of an expert a step, the next one in every pass; the warm-up imitates whole experts: ours",
            "a sampled action is executed once in a world led to the state again, so that its record is whole; what "
            "it earns is not looked at: ours",
            "negatives = recorded takes actions of the stored group instead, so that nothing is sampled: ours",
            "the authors' likelihood term also covers state tokens; here the expert's own tokens alone",
            "perturbed prompts, an option of the authors, are left out",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """1 for the expert's action, -1 for the wrong one in its state, none elsewhere; None without an expert."""
        is_sampled = self.negatives == "sampled"
        experts = [
            at
            for at, one in enumerate(group)
            if one.outcome is not None and one.outcome >= self.min_reward and not (is_sampled and one.branch)
        ]
        if not experts:
            return None
        expert = min(experts, key=lambda at: group[at].id)
        find = hardest_sampled_turn if is_sampled else hardest_wrong_turn
        wrong = find(group, expert=expert)
        turn = _sampled_at(group, expert) if wrong is None and is_sampled else None if wrong is None else wrong.turn
        found = []
        for at, episode in enumerate(group):
            kept_K = np.zeros(episode.num_turns, dtype=np.bool_)
            if at == expert:
                kept_K[slice(None) if turn is None else turn] = True
            elif wrong is not None and at == wrong.member:
                kept_K[wrong.turn] = True
            sign = 1.0 if at == expert else -1.0
            pair = 0 if bool(kept_K.any()) else None
            left_out = "it is neither the expert nor the action compared with it" if pair is None else None
            advantages_K = np.where(kept_K, sign, 0.0)
            found.append(TurnCredit(advantages_K=advantages_K, kept_K=kept_K, pair=pair, left_out=left_out))
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
        """Experts on record, with actions of the present policy or with those of their stored group."""
        data = (
            StoredPairs()
            if self.negatives == "recorded"
            else RefreshedPairs(
                min_reward=self.min_reward,
                samples=self.samples,
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_tokens,
                warm_up=self.warm_up,
                round_steps=self.round_steps,
            )
        )
        return Plan(
            data=data,
            epochs=self.epochs,
            needs_group=True,
            untempered=True,
            signal="an expert: an attempt, no branch, that earns `min_reward`",
        )


def _sampled_at(group: Sequence[Episode], expert: int) -> int | None:
    """The turn of the expert at which actions were sampled, whatever they are; None where none were."""
    return next((one.branch.turn for one in group if one.branch and one.branch.parent == group[expert].id), None)
