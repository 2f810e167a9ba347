"""Reinforcement learning with verifiable rewards: GRPO's or PPO's update, paid by a program's check alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from kifu.algorithms.composition import (
    Amount,
    Card,
    Epochs,
    Feedback,
    Plan,
    Positive,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    gae_credit,
    outcome_returns,
    reduction_of,
    scale_of,
    spread,
)
from kifu.credit import anchored_rewards
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.objectives import ClippedRatio, KlPenalty, Objective, PolicyObjective, Reduction, TokenRatio, ValueRegression


@dataclass(frozen=True, slots=True, kw_only=True)
class Rlvr:
    """An attempt is paid ``verified`` where the verifier found success, else 0; learned signals are refused."""

    baseline: Literal["group", "critic"] = "group"
    """``group``: the return relative to the group, as in GRPO. ``critic``: GAE over turns, as in PPO."""
    verified: Positive = 1.0
    """Paid for a verified success; Tulu 3 pays 10. A group that is divided by its deviation does not see it."""
    beta: Amount = 0.0
    """Price of leaving the policy the stage began with: k3 inside the loss with ``group``, k1 inside the reward with
    ``critic``."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    std: StdName = "sample"
    """What the centred return of a group is divided by."""
    eps: Amount = 1e-6
    lam: Share = 0.95
    """Decay of the critic's residuals."""
    value_coefficient: Amount = 0.5
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Reinforcement learning with verifiable rewards",
        source="Lambert et al., 2024 (Tulu 3, arXiv 2411.15124), section 6; group baseline: Shao et al., 2024",
        feedback=(Feedback.RULE,),
        data=Source.FRESH,
        decision_unit="trajectory; turn with `baseline = critic`",
        turn="assistant message",
        updates="policy; also the critic with `baseline = critic`",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high]; not a bound, the realised ratio and KL are measured",
        denominator="trained tokens",
        on_policy=True,
        online=True,
        family="policy-based; actor-critic with `baseline = critic`",
        neighbour="grpo: takes the same update on whatever reward the experiment pays, graded or learned",
        notes=(
            "refused before the run: a reward model, learned signals on turns, an environment whose verdict is a "
            "model's judgement, a paid component that nobody but its labeller can check; during the run such a "
            "verdict is the verifier's failure and no reward",
            "the verdict counts as success or not; its graded score pays nothing. Components of turns that the "
            "experiment weighs are paid beside it, if a program can check them",
            "an attempt that the verifier could not tell of is not trained and enters no statistic",
            "the paper's update is PPO with a critic; with `group` equal rewards leave a group out, with `critic` "
            "equal rewards silence nothing: the critic still learns",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Verified success, 0 or ``verified``, relative to the group or by GAE; None where nothing is told apart."""
        known = [at for at, one in enumerate(group) if one.success is not None or not one.terminated]
        paid = [self._paid(group[at]) for at in known]
        found = self._relative(paid, rules) if self.baseline == "group" else gae_credit(paid, rules, lam=self.lam)
        if not found:
            return None
        told = dict(zip(known, found, strict=True))
        return [told.get(at) or self._untold(one) for at, one in enumerate(group)]

    def _untold(self, one: Episode) -> TurnCredit:
        """Credit that trains no turn; a critic's target is there and weighs nothing."""
        nothing_K = np.zeros(one.num_turns)
        return TurnCredit(
            advantages_K=nothing_K,
            kept_K=np.zeros(one.num_turns, dtype=np.bool_),
            value_targets_K=nothing_K if self.baseline == "critic" else None,
            left_out="the verifier could not tell whether it succeeded",
        )

    def _paid(self, one: Episode) -> Episode:
        """The attempt with the verified reward in place of the verdict's score; what checks paid on the way stays."""
        success = self.verified * float(bool(one.success))
        rewards_K = one.rewards_K.copy()
        rewards_K[-1] += success - (one.outcome or 0.0)
        if self.baseline == "critic" and self.beta:
            rewards_K += anchored_rewards(replace(one, model_score=0.0), beta=self.beta)
        return replace(one, rewards_K=rewards_K)

    def _relative(self, paid: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        returns = outcome_returns(paid, rules)
        if not returns or is_degenerate(returns):
            return None
        return spread(paid, group_relative(returns, scale=scale_of(self.std, eps=self.eps)))

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios; value regression with a critic, k3 with a group where ``beta`` is set."""
        has_critic = self.baseline == "critic"
        return PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            kl=KlPenalty(coefficient=self.beta, estimator="k3") if self.beta and not has_critic else None,
            value=ValueRegression(coefficient=self.value_coefficient, clip=None) if has_critic else None,
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Fresh rollouts whose rewards programs check; in groups, or whitened with a critic."""
        has_critic = self.baseline == "critic"
        return Plan(
            needs_group=not has_critic,
            needs_value=has_critic,
            whiten=has_critic,
            epochs=self.epochs,
            needs_reference=self.beta > 0,
            verifiable=True,
            signal="a verdict" if has_critic else "verdicts that differ",
        )
