"""RLHF: proximal policy optimization on a reward model, anchored to the policy it began with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    TurnCredit,
    gae_credit,
    reduction_of,
)
from kifu.credit import anchored_rewards
from kifu.credit.episode import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import (
    ClippedRatio,
    EntropyBonus,
    Objective,
    PolicyObjective,
    Reduction,
    TokenRatio,
    ValueRegression,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlhfPpo:
    """The reward is what a model learned from preferences says at the end, minus the price of leaving the reference."""

    beta: Amount = 0.02
    """Price of one nat away from the reference."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    lam: Share = 0.95
    epochs: Epochs = 4
    value_coefficient: Amount = 0.5
    entropy_coefficient: Amount = 0.0
    whiten: bool = True
    """Normalize advantages over the trained tokens of the update."""
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="RLHF: reward model and PPO",
        source="Ouyang et al., 2022 (arXiv 2203.02155), eq. 1 and 2; clip and advantages of PPO",
        feedback=(Feedback.REWARD_MODEL, Feedback.PREFERENCE),
        data=Source.FRESH,
        decision_unit="turn",
        turn="assistant message",
        updates="policy and critic; the reward model before the run and never in it",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="actor-critic",
        neighbour="ppo: the same update on the environment's own reward, without a reference",
        notes=(
            "the verdict of the environment trains nothing here: it is recorded and evaluated, so that a reward model "
            "that is fooled is seen",
            "the reward model is fitted by Bradley-Terry to pairs of stored attempts (credit.reward_model) beforehand",
            "the penalty is k1 inside the reward, added up over the tokens of a turn: credit is per turn, ours",
            "the authors' added pretraining loss is not here",
            "equal rewards silence nothing: where every advantage is 0, the critic still learns, and its step carries "
            "moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """A_k by GAE over turns on the score and the penalty; the critic's target is A_k + V(h_k)."""
        anchored = [replace(one, rewards_K=anchored_rewards(one, beta=self.beta)) for one in group]
        return gae_credit(anchored, rules, lam=self.lam)

    def objective(self) -> Objective:
        """Clipped surrogate, value regression, entropy bonus where it is set."""
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            entropy=EntropyBonus(coefficient=self.entropy_coefficient) if self.entropy_coefficient else None,
            value=ValueRegression(coefficient=self.value_coefficient),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts, several passes, with a critic, a reference and a reward model."""
        return Plan(
            needs_value=True, epochs=self.epochs, whiten=self.whiten, needs_reference=True, needs_reward_model=True
        )
