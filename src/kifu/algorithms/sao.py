"""Single-rollout asynchronous optimization: a critic in place of a group, and a two-sided mask."""

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
    ReductionName,
    Share,
    Source,
    TurnCredit,
    gae_credit,
    reduction_of,
)
from kifu.credit.arrays import Doubles
from kifu.credit.episode import Episode
from kifu.credit.gae_tokens import episode_token_gae, token_values
from kifu.credit.reading import RewardRules
from kifu.objectives import BandMask, Objective, PolicyObjective, Reduction, TokenRatio, ValueRegression


@dataclass(frozen=True, slots=True, kw_only=True)
class Sao:
    """GAE over sampled tokens only; a token whose ratio left the band has no gradient, whatever its advantage."""

    clip_low: Share = 0.2
    """The band begins above 1 - clip_low."""
    clip_high: Amount = 0.28
    """The band ends below 1 + clip_high."""
    lam: Share = 0.95
    value_coefficient: Amount = 0.5
    value_clip: Positive | None = None
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Single-rollout asynchronous optimization (SAO)",
        source="arXiv 2607.07508, through accounts of it that agree; not read itself",
        feedback=(Feedback.OUTCOME,),
        data=Source.OLDER,
        decision_unit="token where the critic values tokens, else turn",
        turn="assistant message; observations between messages are skipped",
        updates="policy and critic",
        optimization="weights",
        freshness="up to `max_age` versions old, each rollout in `epochs` optimizer steps",
        ratio="token, against the policy that sampled; a weight without gradient on log pi inside "
        "(1 - clip_low, 1 + clip_high), 0 outside",
        denominator="trained tokens, masked ones included",
        on_policy=False,
        online=True,
        family="actor-critic",
        neighbour="ppo: pessimistic clip, which lets a ratio grow where the advantage is negative",
        notes=(
            "not published: the bounds (0.2 and 0.28 are ours)",
            "the source trains its critic twice as often with its attention frozen; here both are updated together",
            "with values per token GAE runs over all sampled tokens as one sequence; with values per turn over turns, "
            "where no observation stands in between either",
            "equal rewards silence nothing: where every advantage is 0, the critic still learns, and its step carries "
            "moments and decay",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """GAE over sampled tokens, or over turns where values are known per turn only."""
        if not all(episode.turns and all(turn.values_N is not None for turn in episode.turns) for episode in group):
            return gae_credit(group, rules, lam=self.lam)
        return [self._over_tokens(episode, rules) for episode in group]

    def _over_tokens(self, episode: Episode, rules: RewardRules) -> TurnCredit:
        found_KN = episode_token_gae(episode, gamma=rules.gamma, lam=self.lam)
        return TurnCredit(
            advantages_K=np.array([tokens_N.mean() if tokens_N.size else 0.0 for tokens_N in found_KN]),
            token_advantages_K=found_KN,
            value_targets_K=_targets(found_KN, token_values(episode), boundary=episode.boundary),
        )

    def objective(self) -> Objective:
        """Ratio inside the band times A log pi, value regression."""
        return PolicyObjective(
            surrogate=BandMask(level=TokenRatio(), low=self.clip_low, high=self.clip_high),
            value=ValueRegression(coefficient=self.value_coefficient, clip=self.value_clip),
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Rollouts of any age the experiment allows, with a critic and without groups."""
        return Plan(needs_value=True, token_values="taken", epochs=self.epochs)


def _targets(advantages_KN: Sequence[Doubles], values_KN: Sequence[Doubles], *, boundary: float) -> Doubles:
    """``[K]`` A + V at the first token of every turn; a turn without tokens has that of what follows it."""
    found_K, following = np.empty(len(values_KN)), boundary
    for k in range(len(values_KN) - 1, -1, -1):
        if values_KN[k].size:
            following = float(advantages_KN[k][0] + values_KN[k][0])
        found_K[k] = following
    return found_K
